//! Frames off a stream: many in one read, each lent without a copy.

use std::io;
use std::ops::Range;

use muster_core::channel::frames::HEADER_BYTES;
use muster_core::limits;
use tokio::io::{AsyncRead, AsyncReadExt};

/// What is read at a time, and what an idle connection keeps for it.
const BUFFER_BYTES: usize = 2 * (HEADER_BYTES + limits::FRAME_BYTES);

/// What has arrived on a stream, up to [`BUFFER_BYTES`]. A call that is cancelled loses nothing.
pub(crate) struct FrameReader<R> {
    stream: R,
    buffer: Vec<u8>,
    unread: Range<usize>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, buffer: Vec::new(), unread: 0..0 }
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

    /// Reads until so many bytes are there, and shows these: at most a header and a frame, of which the buffer takes two.
    async fn wait(&mut self, length: usize) -> io::Result<&[u8]> {
        while self.unread.len() < length {
            self.make_room(length);
            let read = self.stream.read(&mut self.buffer[self.unread.end..]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.unread.end += read;
        }
        Ok(&self.buffer[self.unread.start..][..length])
    }

    /// Moves what is unread to the front if it has no room where it is.
    fn make_room(&mut self, length: usize) {
        self.buffer.resize(BUFFER_BYTES, 0);
        if self.unread.is_empty() || self.unread.start + length > self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
    }
}
