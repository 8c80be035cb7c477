//! Messages as sealed frames (CHAN-7): one half seals, the other opens, each counts its own frames.
//!
//! A message is its length as `u32` followed by its bytes, cut into texts of 65,519 bytes of which only the last may be
//! shorter; each text is sealed under the number of its frame. On the stream a frame follows its length as `u16`.
//! All numbers are little-endian. A frame that is changed, dropped, repeated or moved does not open.

use std::sync::Arc;

use snow::StatelessTransportState;

use crate::channel::primitives::TAG_BYTES;
use crate::error::{Misuse, Reject};
use crate::limits;

/// Bytes of the length before a frame on the stream.
pub const HEADER_BYTES: usize = 2;
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

    /// Appends the frames of a message to `out`, as they go on the stream.
    ///
    /// # Errors
    /// [`Misuse`] when the message is longer than [`limits::MESSAGE_BYTES`] or the channel is spent.
    pub fn seal(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), Misuse> {
        if message.len() > limits::MESSAGE_BYTES {
            let limit = limits::MESSAGE_BYTES;
            return Err(Misuse(format!("a message of {} bytes where at most {limit} fit", message.len())));
        }
        if self.is_spent() {
            return Err(Misuse("a message on a spent channel".into()));
        }
        let frames = (LENGTH_BYTES + message.len()).div_ceil(TEXT_BYTES);
        out.reserve(LENGTH_BYTES + message.len() + frames * (HEADER_BYTES + TAG_BYTES));
        let (head, rest) = message.split_at(message.len().min(TEXT_BYTES - LENGTH_BYTES));
        let length = u32::try_from(message.len()).expect("bounded above");
        self.seal_frame(&[&length.to_le_bytes(), head].concat(), out);
        rest.chunks(TEXT_BYTES).for_each(|text| self.seal_frame(text, out));
        Ok(())
    }

    pub(super) fn seal_frame(&mut self, text: &[u8], out: &mut Vec<u8>) {
        let length = text.len() + TAG_BYTES;
        out.extend_from_slice(
            &u16::try_from(length).expect("a frame has at most 65,535 bytes").to_le_bytes(),
        );
        let start = out.len();
        out.resize(start + length, 0);
        self.keys
            .write_message(self.next, text, &mut out[start..])
            .expect("the frame has room for text and tag");
        self.next += 1;
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
        let opened = self.open_next(frame);
        // After one failure nothing more is read: a gap could hide what a middleman has dropped.
        self.next = if opened.is_ok() { self.next + 1 } else { limits::CHANNEL_FRAMES };
        opened
    }

    fn open_next(&mut self, frame: &[u8]) -> Result<Option<Vec<u8>>, Reject> {
        if self.next >= limits::CHANNEL_FRAMES {
            return Err(Reject::Rule("nothing follows the last frame of a channel"));
        }
        let (length, message) = match self.partial.take() {
            Some((length, mut message)) => {
                self.append_text(frame, &mut message)?;
                (length, message)
            }
            None => self.first_text(frame)?,
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

    fn first_text(&self, frame: &[u8]) -> Result<(usize, Vec<u8>), Reject> {
        let mut text = Vec::new();
        self.append_text(frame, &mut text)?;
        let Some((length, head)) = text.split_first_chunk::<LENGTH_BYTES>() else {
            return Err(Reject::Malformed("a first frame shorter than a length".into()));
        };
        let length = u32::from_le_bytes(*length) as usize;
        // As soon as it is read: nothing is reserved for a length that is not allowed.
        if length > limits::MESSAGE_BYTES {
            let (length, limit) = (length as u64, limits::MESSAGE_BYTES as u64);
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
