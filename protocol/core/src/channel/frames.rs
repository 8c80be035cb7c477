//! Messages as sealed frames (CHAN-7): one half seals, the other opens, each counts its own frames.
//!
//! A message is its length as `u32` followed by its bytes, cut into texts of 65,519 bytes of which only the last may be
//! shorter; each text is sealed under the number of its frame. On the stream a frame follows its length as `u16`.
//! All numbers are little-endian. A frame that is changed, dropped, repeated or moved does not open.

use core::mem::replace;
use std::sync::Arc;

use snow::StatelessTransportState;

use crate::channel::primitives::TAG_BYTES;
use crate::error::{Misuse, Reject};
use crate::limits;

/// Bytes of the length before a frame on the stream.
pub const HEADER_BYTES: usize = 2;
/// Frames sealed before they are sent.
const PIECE_FRAMES: usize = 16;
/// Bytes of these, with their headers.
pub const PIECE_BYTES: usize = PIECE_FRAMES * (HEADER_BYTES + limits::FRAME_BYTES);
/// Bytes of a message, or of its length, in one full frame.
const TEXT_BYTES: usize = limits::FRAME_BYTES - TAG_BYTES;
/// Bytes of a message's length.
const LENGTH_BYTES: usize = 4;
/// Frames of the longest message.
pub(super) const MESSAGE_FRAMES: u64 = (LENGTH_BYTES + limits::MESSAGE_BYTES).div_ceil(TEXT_BYTES) as u64;

/// The half of a channel that sends.
pub struct Sealer {
    keys: Arc<StatelessTransportState>,
    pub(super) next: u64,
}

impl Sealer {
    pub(super) fn new(keys: Arc<StatelessTransportState>) -> Self {
        Self { keys, next: 0 }
    }

    /// Whether the longest message no longer fits into [`limits::CHANNEL_FRAMES`]: time for a new channel (CHAN-8).
    pub fn is_spent(&self) -> bool {
        // Before a message, not amid one: it would have to be sent again on the next channel.
        self.next + MESSAGE_FRAMES > limits::CHANNEL_FRAMES
    }

    /// Begins a message, whose frames the result gives piece by piece.
    ///
    /// # Errors
    /// [`Misuse`] when the message is longer than [`limits::MESSAGE_BYTES`] or the channel is spent.
    pub fn seal<'a>(&'a mut self, message: &'a [u8]) -> Result<Sealing<'a>, Misuse> {
        if message.len() > limits::MESSAGE_BYTES {
            let limit = limits::MESSAGE_BYTES;
            return Err(Misuse(format!("a message of {} bytes where at most {limit} fit", message.len())));
        }
        if self.is_spent() {
            return Err(Misuse("a message on a spent channel".into()));
        }
        // Spent until the last frame is sealed: nothing may follow half a message.
        let next = replace(&mut self.next, limits::CHANNEL_FRAMES);
        Ok(Sealing { sealer: self, next, message, sealed: 0 })
    }

    fn seal_frame(&self, number: u64, text: &[u8], out: &mut [u8]) {
        let length = u16::try_from(text.len() + TAG_BYTES).expect("a frame has at most 65,535 bytes");
        let (header, frame) = out.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&length.to_le_bytes());
        self.keys.write_message(number, text, frame).expect("the frame has room for text and tag");
    }

    /// Seals any text as a frame, as a lying peer can.
    #[cfg(test)]
    pub(super) fn seal_text(&mut self, text: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; HEADER_BYTES + text.len() + TAG_BYTES];
        self.seal_frame(self.next, text, &mut frame);
        self.next += 1;
        frame
    }
}

/// A message on its way into frames. Dropped before [`Self::next_piece`] has said that nothing is left, it leaves the channel spent.
pub struct Sealing<'a> {
    sealer: &'a mut Sealer,
    /// Number of the next frame.
    next: u64,
    message: &'a [u8],
    /// Bytes of length and message that are in frames already.
    sealed: usize,
}

impl Sealing<'_> {
    /// Puts the next frames into `out`, as they go on the stream, instead of what is there: at most [`PIECE_BYTES`], so that
    /// they are sent while the processor's cache has them. False, and nothing, after the last frame.
    pub fn next_piece(&mut self, out: &mut Vec<u8>) -> bool {
        let rest = LENGTH_BYTES + self.message.len() - self.sealed;
        let text = rest.min(PIECE_FRAMES * TEXT_BYTES);
        out.resize(text + text.div_ceil(TEXT_BYTES) * (HEADER_BYTES + TAG_BYTES), 0);
        out.chunks_mut(HEADER_BYTES + limits::FRAME_BYTES).for_each(|frame| self.seal_next(frame));
        // Not earlier: the last piece may not have been sent.
        if rest == 0 {
            self.sealer.next = self.next;
        }
        text > 0
    }

    fn seal_next(&mut self, frame: &mut [u8]) {
        let length = frame.len() - HEADER_BYTES - TAG_BYTES;
        let number = self.next;
        // Before it is used: no number ever seals two texts.
        self.next += 1;
        if let Some(start) = self.sealed.checked_sub(LENGTH_BYTES) {
            self.sealer.seal_frame(number, &self.message[start..start + length], frame);
        } else {
            let announced = u32::try_from(self.message.len()).expect("bounded when the message began");
            let text = [&announced.to_le_bytes(), &self.message[..length - LENGTH_BYTES]].concat();
            self.sealer.seal_frame(number, &text, frame);
        }
        self.sealed += length;
    }
}

/// The half of a channel that receives.
pub struct Opener {
    keys: Arc<StatelessTransportState>,
    /// Number of the next frame; past the limit once a frame did not open.
    pub(super) next: u64,
    /// The message under way: its announced length, and the bytes that have arrived.
    partial: Option<(usize, Vec<u8>)>,
}

impl Opener {
    pub(super) fn new(keys: Arc<StatelessTransportState>) -> Self {
        Self { keys, next: 0, partial: None }
    }

    /// Takes the next frame, without its header, and returns the message that it completes.
    ///
    /// # Errors
    /// [`Reject`] when the frame is not the next one of the peer, is cut otherwise than this module says, announces a
    /// message over the limit, or is one too many. Every later frame is refused, too.
    pub fn open(&mut self, frame: &[u8]) -> Result<Option<Vec<u8>>, Reject> {
        self.open_within(frame, limits::MESSAGE_BYTES)
    }

    /// The same with a limit for this message that may be lower than [`limits::MESSAGE_BYTES`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_within(&mut self, frame: &[u8], limit: usize) -> Result<Option<Vec<u8>>, Reject> {
        let opened = self.open_next(frame, limit);
        // After one failure nothing more is read: a gap could hide what a middleman has dropped.
        self.next = if opened.is_ok() { self.next + 1 } else { limits::CHANNEL_FRAMES };
        opened
    }

    /// Bytes that the message under way takes, as it has announced; 0 between messages.
    pub fn announced(&self) -> usize {
        self.partial.as_ref().map_or(0, |(length, _)| *length)
    }

    fn open_next(&mut self, frame: &[u8], limit: usize) -> Result<Option<Vec<u8>>, Reject> {
        if self.next >= limits::CHANNEL_FRAMES {
            return Err(Reject::Rule("nothing follows the last frame of a channel"));
        }
        let (length, message) = match self.partial.take() {
            Some((length, mut message)) => {
                self.append_text(frame, &mut message)?;
                (length, message)
            }
            None => self.first_text(frame, limit.min(limits::MESSAGE_BYTES))?,
        };
        // Bytes behind the announced end would be read as the next length.
        if message.len() > length {
            return Err(Reject::Rule("a message has the length that it announced"));
        }
        if message.len() == length {
            return Ok(Some(message));
        }
        // One way to cut a message: otherwise a message could take 2²⁴ frames.
        if frame.len() != limits::FRAME_BYTES {
            return Err(Reject::Rule("every frame of a message but the last is full"));
        }
        self.partial = Some((length, message));
        Ok(None)
    }

    fn first_text(&self, frame: &[u8], limit: usize) -> Result<(usize, Vec<u8>), Reject> {
        let mut text = Vec::new();
        self.append_text(frame, &mut text)?;
        let Some((length, head)) = text.split_first_chunk::<LENGTH_BYTES>() else {
            return Err(Reject::Malformed("a first frame shorter than a length".into()));
        };
        let length = u32::from_le_bytes(*length) as usize;
        // As soon as it is read: nothing is reserved for a length that is not allowed.
        if length > limit {
            let (length, limit) = (length as u64, limit as u64);
            return Err(Reject::TooLong { what: "a channel message", length, limit });
        }
        let mut message = Vec::with_capacity(length.max(head.len()));
        message.extend_from_slice(head);
        Ok((length, message))
    }

    fn append_text(&self, frame: &[u8], text: &mut Vec<u8>) -> Result<(), Reject> {
        let unsealed = || Reject::Malformed("not the next frame of this channel".into());
        let length = frame.len().checked_sub(TAG_BYTES).ok_or_else(unsealed)?;
        let start = text.len();
        text.resize(start + length, 0);
        self.keys.read_message(self.next, frame, &mut text[start..]).map_err(|_| unsealed())?;
        Ok(())
    }
}
