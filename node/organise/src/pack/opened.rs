//! Files and pipes, as the bytes that they were before somebody compressed them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use muster_replica::exit::{Failure, Outcome};
use muster_store::regular;

use super::piece::Reading;

/// Bytes at the beginning that are looked at.
const HEAD: u64 = 64 << 10;
/// What some files begin with that hold no text as it is: what they are, and the way out.
const OTHERS: [(&[u8], &str, &str); 10] = [
    (b"\xFF\xFE\0\0", "is UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"),
    (b"\0\0\xFE\xFF", "is UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"),
    (b"\xFF\xFE", "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xFE\xFF", "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"PAR1", "is a Parquet file", "name the file itself, and let its name end with .parquet"),
    (b"BZh", "is compressed by bzip2", "unpack it, or pipe it: --text <(bzcat FILE)"),
    (b"\xFD7zXZ\0", "is compressed by xz", "unpack it, or pipe it: --text <(xzcat FILE)"),
    (b"PK\x03\x04", "is a ZIP archive, or a document of an office program", "save it as plain text"),
    (b"%PDF-", "is a PDF", "save it as plain text"),
    (b"\xD0\xCF\x11\xE0", "is a document of an office program", "save it as plain text"),
];

/// A file or pipe.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) path: PathBuf,
    /// Its length on the disk; none of a pipe, which has whatever comes.
    pub(super) bytes: Option<u64>,
}

impl Input {
    pub(super) fn is_pipe(&self) -> bool {
        self.bytes.is_none()
    }
}

/// A file or pipe that is open.
pub(super) struct Opened {
    /// What people call it.
    pub(super) name: Arc<str>,
    /// Its first bytes, a mark of UTF-8 left out.
    pub(super) head: Vec<u8>,
    rest: Box<dyn Read>,
}

impl Opened {
    /// Opens it, and looks at its beginning.
    ///
    /// # Errors
    /// [`Failure`] naming what cannot be read or is no text, and the pipe that gives nothing.
    pub(super) fn new(input: &Input, reading: &Rc<Reading>) -> Outcome<Self> {
        let name: Arc<str> = input.path.display().to_string().into();
        let unread = |error: io::Error| unread(&name, &error);
        let source = Counted { source: source(input)?, reading: Rc::clone(reading) };
        let (packed, rest) = head(source).map_err(unread)?;
        if packed.is_empty() && input.is_pipe() {
            let what = "gave nothing; did the command that writes into it fail?";
            return Err(Failure::environment(format!("{name}: {what}")));
        }
        let all = Cursor::new(packed.clone()).chain(rest);
        let (mut head, rest): (Vec<u8>, Box<dyn Read>) = if packed.starts_with(b"\x1F\x8B") {
            boxed(MultiGzDecoder::new(BufReader::new(all))).map_err(unread)?
        } else if packed.starts_with(b"\x28\xB5\x2F\xFD") {
            boxed(zstd::Decoder::new(all).map_err(unread)?).map_err(unread)?
        } else {
            (packed, all.into_inner().1.boxed())
        };
        // A mark of Windows at the beginning is no text.
        if head.starts_with(b"\xEF\xBB\xBF") {
            head.drain(..3);
        }
        match OTHERS.iter().find(|(magic, ..)| head.starts_with(magic)) {
            Some((_, what, then)) => Err(Failure::environment(format!("{name}: {what}; {then}"))),
            None => Ok(Self { name, head, rest }),
        }
    }

    /// All bytes from the beginning.
    pub(super) fn bytes(self) -> Box<dyn BufRead> {
        Box::new(BufReader::new(Cursor::new(self.head).chain(self.rest)))
    }
}

/// A failure to read on.
pub(super) fn unread(name: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::environment(format!("{name}: cannot be read ({error})"))
}

fn source(input: &Input) -> Outcome<Box<dyn Read>> {
    if input.path == Path::new("-") {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            return Err(Failure::usage(
                "-: standard input is a terminal; pipe a text into it, or name a file",
            ));
        }
        return Ok(Box::new(stdin));
    }
    let file = if input.is_pipe() {
        File::open(&input.path).map_err(|error| unread(&input.path.display().to_string(), &error))?
    } else {
        regular::open(&input.path, u64::MAX)
            .map_err(|error| unread(&input.path.display().to_string(), &error.cause()))?
    };
    Ok(Box::new(file))
}

/// The first bytes, and what follows them. A pipe gives as much at a time as it likes.
fn head<R: Read>(mut source: R) -> io::Result<(Vec<u8>, R)> {
    let mut head = Vec::new();
    source.by_ref().take(HEAD).read_to_end(&mut head)?;
    Ok((head, source))
}

fn boxed<R: Read + 'static>(source: R) -> io::Result<(Vec<u8>, Box<dyn Read>)> {
    let (head, rest) = head(source)?;
    Ok((head, Box::new(rest)))
}

/// Counts what is read.
struct Counted {
    source: Box<dyn Read>,
    reading: Rc<Reading>,
}

impl Counted {
    fn boxed(self) -> Box<dyn Read> {
        Box::new(self)
    }
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(into)?;
        self.reading.bytes.set(self.reading.bytes.get() + read as u64);
        Ok(read)
    }
}
