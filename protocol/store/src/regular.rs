//! Files that strangers may have made: opened only where they are regular files, and read only as far as their kind may
//! be long.
//!
//! A folder may be an archive that somebody sent. In it, a name may be that of a named pipe, which keeps whoever opens it
//! waiting for a writer; of a device, which never ends; or of a file with a hole of terabytes, which takes no room where
//! it lies. All of this is looked at on the open file: another one may have its name a moment later.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use crate::error::{Kind, Result, StoreError};
use crate::patience::patiently;

/// Bytes of settings and other texts that people write.
pub const TEXT_BYTES: u64 = 1 << 20;

/// A regular file of at most `most` bytes, open for reading.
///
/// # Errors
/// [`Kind::Missing`]; [`Kind::Refused`] for what is no regular file, or longer; what the system reports.
pub fn open(path: &Path, most: u64) -> Result<File> {
    let failed = |error| StoreError::io(path, &error);
    let mut options = OpenOptions::new();
    options.read(true);
    // A named pipe is opened at once, and a terminal becomes nobody's. Regular files are read as ever.
    #[cfg(unix)]
    {
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits() as i32);
    }
    let file = patiently(|| options.open(path)).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        let cause = format!("is {}, and a regular file is needed", kind(found.file_type()));
        return Err(StoreError::refused(path, cause, "put the file itself there, or name another one"));
    }
    bounded(path, found.len(), most)?;
    Ok(file)
}

/// The bytes of a regular file of at most `most` bytes.
///
/// # Errors
/// As of [`open`].
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let failed = |error: io::Error| StoreError::io(path, &error);
    let file = open(path, most)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // It may be growing.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    bounded(path, bytes.len() as u64, most)?;
    Ok(bytes)
}

/// The text of a regular file of at most `most` bytes, as [`unmarked`] gives it.
///
/// # Errors
/// As of [`open`]; [`Kind::Refused`] for what is no UTF-8.
pub fn text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(unmarked(read(path, most)?)).map_err(|error| {
        let cause = format!("is not UTF-8 text (byte {})", error.utf8_error().valid_up_to());
        StoreError::refused(path, cause, "check the path, or convert it")
    })
}

/// A text that people bring, as the UTF-8 that was meant: editors and shells of Windows begin it with a mark, or write the UTF-16
/// that another mark begins. What is not so stays as it is.
pub fn unmarked(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        bytes.drain(..3);
        return bytes;
    }
    let unit: fn([u8; 2]) -> u16 = match bytes.get(..2) {
        Some([0xff, 0xfe]) => u16::from_le_bytes,
        Some([0xfe, 0xff]) => u16::from_be_bytes,
        _ => return bytes,
    };
    let (pairs, rest) = bytes[2..].as_chunks();
    let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
    match String::from_utf16(&units) {
        Ok(text) if rest.is_empty() => text.into_bytes(),
        _ => bytes,
    }
}

/// The same as [`text`], and nothing where there is no such file.
///
/// # Errors
/// As of [`text`], but for [`Kind::Missing`].
pub fn text_if_there(path: &Path, most: u64) -> Result<Option<String>> {
    match text(path, most) {
        Err(error) if error.kind() == Kind::Missing => Ok(None),
        text => text.map(Some),
    }
}

fn bounded(path: &Path, length: u64, most: u64) -> Result<()> {
    if length > most {
        let cause = format!("has {length} bytes, a file of this kind has at most {most}");
        return Err(StoreError::refused(path, cause, "check the path, or get the file again"));
    }
    Ok(())
}

fn kind(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return "a named pipe";
        }
        if found.is_char_device() || found.is_block_device() {
            return "a device";
        }
        if found.is_socket() {
            return "a socket";
        }
    }
    if found.is_dir() { "a directory" } else { "something else" }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_a_regular_file_of_bounded_length_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(read(&path, 5).unwrap_err().kind(), Kind::Missing);
        assert_eq!(text_if_there(&path, 5).unwrap(), None);
        fs::write(&path, b"bytes").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"bytes");
        assert_eq!(text_if_there(&path, 5).unwrap().as_deref(), Some("bytes"));
        let long = read(&path, 4).unwrap_err();
        assert_eq!(long.kind(), Kind::Refused);
        assert!(
            long.to_string().contains("file: has 5 bytes, a file of this kind has at most 4; check"),
            "{long}"
        );
        fs::write(&path, b"\xff").unwrap();
        assert!(text(&path, 5).unwrap_err().to_string().contains("is not UTF-8 text (byte 0)"));
        let folder = read(directory.path(), 5).unwrap_err();
        assert!(folder.to_string().contains("is a directory, and a regular file is needed; put"), "{folder}");
        // A hole takes no room on the disk, and must take none in memory.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap_err().kind(), Kind::Refused);
    }

    #[test]
    fn a_text_is_read_as_editors_of_windows_write_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            text(&path, 100)
        };
        let meant = "name = \"d\u{e4} \u{1f600}\"\r\n";
        let marked = format!("\u{feff}{meant}");
        assert_eq!(read(meant.as_bytes()).unwrap(), meant);
        assert_eq!(read(marked.as_bytes()).unwrap(), meant);
        for unit in [u16::to_le_bytes, u16::to_be_bytes] {
            let mut bytes: Vec<u8> = marked.encode_utf16().flat_map(unit).collect();
            assert_eq!(read(&bytes).unwrap(), meant);
            bytes.pop();
            assert!(read(&bytes).unwrap_err().to_string().contains("is not UTF-8 text (byte 0)"));
        }
        // A mark within is text, and half a mark is none.
        for odd in ["a\u{feff}".as_bytes(), b"\xEF\xBB", b"\xFF", b"\xFF\xFE\x00\xD8"] {
            assert_eq!(unmarked(odd.to_vec()), odd);
        }
        assert_eq!(unmarked(marked.repeat(2).into_bytes()), format!("{meant}{marked}").into_bytes());
    }

    #[cfg(unix)]
    #[test]
    fn pipes_devices_and_links_to_them_keep_nobody_waiting() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        symlink(at("pipe"), at("link")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        symlink(at("circle"), at("circle")).unwrap();
        for (name, what) in [("pipe", "a named pipe"), ("link", "a named pipe"), ("zero", "a device")] {
            let error = read(&at(name), u64::MAX).unwrap_err();
            assert!(error.to_string().contains(&format!("{name}: is {what}, and")), "{error}");
        }
        read(&at("circle"), u64::MAX).unwrap_err();
        // What a link leads to may be a file: people keep large ones elsewhere.
        fs::write(at("file"), b"bytes").unwrap();
        symlink(at("file"), at("other")).unwrap();
        assert_eq!(read(&at("other"), 5).unwrap(), b"bytes");
    }
}
