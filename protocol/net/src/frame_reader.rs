//! Frames off a stream: many in one read, each lent without a copy.

use std::io;
use std::ops::Range;

use muster_core::channel::frames::HEADER_BYTES;
use muster_core::limits;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::rate::Valve;

/// A full frame on the stream.
const FULL_BYTES: usize = HEADER_BYTES + limits::FRAME_BYTES;
/// What an idle connection keeps for reading.
const KEPT_BYTES: usize = 2 * FULL_BYTES;
/// What one keeps for a peer of which there may be many: a short request fits.
pub(crate) const SMALL_BYTES: usize = 4096;
/// What is read at a time of a long message: fewer reads, and as much as a processor's cache has.
const LONG_BYTES: usize = 4 * FULL_BYTES;

/// What has arrived on a stream, up to [`LONG_BYTES`]. A call that is cancelled loses nothing.
pub(crate) struct FrameReader<R> {
    stream: R,
    valve: Valve,
    buffer: Vec<u8>,
    unread: Range<usize>,
    /// Whether a long message is under way.
    long: bool,
    /// Whether as little memory as possible is kept and used.
    small: bool,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Takes what the valve lets pass.
    pub(crate) fn new(stream: R, valve: Valve) -> Self {
        Self { stream, valve, buffer: Vec::new(), unread: 0..0, long: false, small: false }
    }

    /// Uses little memory from now on, and reads less at a time.
    pub(crate) fn shrink(&mut self, small: bool) {
        self.small = small;
    }

    fn kept_bytes(&self) -> usize {
        if self.small { SMALL_BYTES } else { KEPT_BYTES }
    }

    /// Bytes of memory that it holds.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.buffer.capacity()
    }

    /// Waits for the header of the next frame, and returns the length of what follows it.
    ///
    /// # Errors
    /// Those of the stream; that it ended.
    pub(crate) async fn header(&mut self) -> io::Result<usize> {
        let bytes = self.wait(HEADER_BYTES).await?;
        let header = *bytes.first_chunk().expect("as many bytes as were waited for");
        Ok(usize::from(u16::from_le_bytes(header)))
    }

    /// Takes the next frame, without its header.
    ///
    /// # Errors
    /// Those of the stream; that it ended.
    pub(crate) async fn frame(&mut self) -> io::Result<&[u8]> {
        let length = HEADER_BYTES + self.header().await?;
        self.wait(length).await?;
        let start = self.unread.start;
        self.unread.start += length;
        Ok(&self.buffer[start + HEADER_BYTES..start + length])
    }

    /// A frame was opened whose message goes on: more is read at a time. Not before, so that nobody has memory for bytes that do
    /// not open.
    pub(crate) fn widen(&mut self) {
        self.long = true;
    }

    /// A message is over: gives back the memory that only a long one needs, unless another one has begun to arrive.
    pub(crate) fn settle(&mut self) {
        self.long = false;
        let kept = self.kept_bytes();
        if self.buffer.len() > kept && self.unread.len() <= kept {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            self.buffer.truncate(kept);
            self.buffer.shrink_to_fit();
        }
    }

    /// Reads until so many bytes are there, and shows these: at most a header and a frame, of which the buffer takes two.
    async fn wait(&mut self, length: usize) -> io::Result<&[u8]> {
        while self.unread.len() < length {
            self.make_room(length);
            self.valve.ready().await;
            let room = &mut self.buffer[self.unread.end..];
            let most = self.valve.at_a_time(room.len());
            let read = self.stream.read(&mut room[..most]).await?;
            self.valve.passed(read);
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.unread.end += read;
        }
        Ok(&self.buffer[self.unread.start..][..length])
    }

    /// Moves what is unread to the front if it has no room where it is.
    fn make_room(&mut self, length: usize) {
        let bytes = if self.long && !self.small { LONG_BYTES } else { self.kept_bytes() };
        self.buffer.resize(bytes.max(length).max(self.buffer.len()), 0);
        if self.unread.is_empty() || self.unread.start + length > self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
    }
}
