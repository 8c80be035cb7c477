//! Files and pipes, as the bytes that they were before somebody compressed them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, IsTerminal, Read, Seek};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use muster_replica::exit::{Failure, Outcome};
use muster_store::regular;

use super::piece::{Format, Reading};
use crate::pointer::no_pointer;

/// Bytes at the beginning that are looked at.
const HEAD: u64 = 64 << 10;
/// The way out where bytes are no UTF-8: what Windows calls ANSI is the usual cause.
pub(super) const CONVERT: &str =
    "leave it out or convert it (iconv -f WINDOWS-1252 -t UTF-8, if it was written so)";
/// What some files begin with that hold no text as it is: what they are, and the way out.
const OTHERS: [(&[u8], &str, &str); 13] = [
    (b"\xFF\xFE\0\0", "is UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"),
    (b"\0\0\xFE\xFF", "is UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"),
    (b"\xFF\xFE", "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xFE\xFF", "is UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"PAR1", "is a Parquet file", "name the file itself, and let its name end with .parquet"),
    (ARROW_FILE, "is an Arrow file (Feather), of which streams alone are read", "save it as Parquet"),
    (b"BZh", "is compressed by bzip2", "unpack it, or pipe it: --text <(bzcat FILE)"),
    (b"\xFD7zXZ\0", "is compressed by xz", "unpack it, or pipe it: --text <(xzcat FILE)"),
    (b"PK\x03\x04", "is a ZIP archive, or a document of an office program", "save it as plain text"),
    (b"7z\xBC\xAF\x27\x1C", "is a 7-Zip archive", "unpack it, and name the folder"),
    (b"%PDF-", "is a PDF", "save it as plain text"),
    (b"{\\rtf", "is rich text (RTF) of an office program", "save it as plain text"),
    (b"\xD0\xCF\x11\xE0", "is a document of an office program", "save it as plain text"),
];
/// What compressed files begin with: those of gzip, and of zstd's frames of data and of those that are skipped.
const GZIP: &[u8] = b"\x1F\x8B";
const ZSTD: &[u8] = b"\x28\xB5\x2F\xFD";
const SKIPPED: &[u8] = b"\x2A\x4D\x18";
/// What an Arrow file begins with that is no stream.
const ARROW_FILE: &[u8] = b"ARROW1";
/// What a tape archive has in its first header, and where.
const TAR: (usize, &[u8]) = (257, b"ustar");

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
    /// Its first bytes, a mark of UTF-8 left out, and with LF where all lines end with CR.
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
        let (mut head, rest): (Vec<u8>, Box<dyn Read>) = if packed.starts_with(GZIP) {
            boxed(Unpacked(MultiGzDecoder::new(BufReader::new(all)))).map_err(unread)?
        } else if is_zstd(&packed) {
            boxed(Unpacked(zstd::Decoder::new(all).map_err(unread)?)).map_err(unread)?
        } else {
            (packed, all.into_inner().1.boxed())
        };
        // A mark of Windows at the beginning is no text.
        if head.starts_with(b"\xEF\xBB\xBF") {
            head.drain(..3);
        }
        // What is text by its bytes is text where somebody says so.
        let is_said = reading.format == Some(Format::Text) && !head.iter().any(|byte| is_binary(*byte));
        if !is_said {
            no_pointer(&input.path, &head)?;
            if let Some((what, then)) = other(&head) {
                return Err(Failure::environment(format!("{name}: {what}; {then}")));
            }
        }
        if ends_with_cr(&head) {
            reading.line_ends.set(reading.line_ends.get() + 1);
            let lines = OldLines { source: Cursor::new(head).chain(rest), half: false };
            let (head, rest) = boxed(lines).map_err(unread)?;
            return Ok(Self { name, head, rest });
        }
        Ok(Self { name, head, rest })
    }

    /// All bytes from the beginning.
    pub(super) fn bytes(self) -> Box<dyn BufRead> {
        Box::new(BufReader::new(Cursor::new(self.head).chain(self.rest)))
    }
}

/// Whether this begins as a file that zstd compressed.
fn is_zstd(head: &[u8]) -> bool {
    let skipped = head.first().is_some_and(|byte| byte >> 4 == 5) && head[1..].starts_with(SKIPPED);
    head.starts_with(ZSTD) || skipped
}

/// Refuses what a file of rows is not that is read at several places: a pointer, or compressed as a whole.
///
/// # Errors
/// [`Failure`] naming the file, and how to have it read.
pub(super) fn check_unwrapped(path: &Path, file: &File) -> Outcome<()> {
    let name = path.display().to_string();
    let failed = |error: io::Error| unread(&name, &error);
    let mut beginning = Vec::new();
    let mut file = file;
    file.take(HEAD).read_to_end(&mut beginning).map_err(failed)?;
    file.rewind().map_err(failed)?;
    no_pointer(path, &beginning)?;
    if beginning.starts_with(ARROW_FILE) {
        let what = "is an Arrow file (Feather), of which streams alone are read; save it as Parquet";
        return Err(Failure::environment(format!("{name}: {what}")));
    }
    if beginning.starts_with(GZIP) || is_zstd(&beginning) {
        let what = "is compressed as a whole, and is read at several places; unpack it";
        return Err(Failure::environment(format!("{name}: {what}")));
    }
    Ok(())
}

/// What a file is that begins like this, and the way out, if it holds no text as it is.
fn other(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let (at, mark) = TAR;
    if head.get(at..).is_some_and(|rest| rest.starts_with(mark)) {
        return Some(("is a tar archive", "unpack it (tar -xf FILE), and name the folder"));
    }
    if head.starts_with(GZIP) || is_zstd(head) {
        return Some(("is compressed twice", "unpack it once"));
    }
    let found = OTHERS.iter().find(|(magic, ..)| head.starts_with(magic));
    found.map(|(_, what, then)| (*what, *then))
}

/// Whether no text has this byte: control characters other than those that lay it out.
fn is_binary(byte: u8) -> bool {
    byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r' | b'\x0B' | b'\x0C' | b'\x1B')
}

/// Whether lines end with CR alone, as on old Macs: no other line end is among the first bytes of a file.
fn ends_with_cr(head: &[u8]) -> bool {
    // What follows the last byte may be the other half of a line end of Windows.
    let known = head.split_last().map_or(head, |(_, known)| known);
    known.contains(&b'\r') && !head.contains(&b'\n')
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

/// What a decompressor reads. It says what to do where that fails.
struct Unpacked<R>(R);

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| {
            // What the disk says is passed on as it is.
            if error.raw_os_error().is_some() || error.kind() == io::ErrorKind::Interrupted {
                return error;
            }
            let then = match error.to_string() {
                what if what.contains("too much memory") => {
                    "pipe it: --text <(zstd -dc --long=31 FILE) --format …"
                }
                _ => "it is damaged, or no whole file; get it again",
            };
            io::Error::other(format!("{error}: {then}"))
        })
    }
}

/// A text of an old Mac, with LF in the place of every line end.
struct OldLines<R> {
    source: R,
    /// The byte before was CR: what follows may be the other half of a line end of Windows.
    half: bool,
}

impl<R: Read> Read for OldLines<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.source.read(into)?;
            let mut kept = 0;
            for at in 0..read {
                let byte = into[at];
                let is_rest = byte == b'\n' && self.half;
                self.half = byte == b'\r';
                if !is_rest {
                    into[kept] = if self.half { b'\n' } else { byte };
                    kept += 1;
                }
            }
            // None is the end.
            if kept > 0 || read == 0 {
                return Ok(kept);
            }
        }
    }
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
