//! How the texts of a corpus end.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use muster_core::manifest::{Data, DataFile};

use super::names::{most, name};
use super::tokens;
use crate::error::{Kind, Result, StoreError};
use crate::regular;

/// The last token of the training text and of the held-out one, read from a corpus of which nothing else is read or checked. None
/// where a file is missing, or has another length than the manifest says.
///
/// # Errors
/// [`crate::error::Kind::Refused`] for what is no regular file; what the system reports.
pub fn last_tokens(directory: &Path, data: &Data) -> Result<Option<[u32; 2]>> {
    let mut last = [0; 2];
    for (file, token) in [DataFile::Training, DataFile::HeldOut].into_iter().zip(&mut last) {
        let path = directory.join(name(file));
        let open = match regular::open(&path, most(file)) {
            Err(error) if error.kind() == Kind::Missing => return Ok(None),
            open => open?,
        };
        let bytes = end(open, data.file_bytes(file), tokens::size(&data.tokeniser));
        let bytes = bytes.map_err(|error| StoreError::io(&path, &error))?;
        let Some(found) = bytes.and_then(|bytes| tokens::read(&bytes, bytes.len()).next()) else {
            return Ok(None);
        };
        *token = found;
    }
    Ok(Some(last))
}

/// The last `size` bytes of a file of exactly this length.
fn end(mut file: File, length: u64, size: usize) -> std::io::Result<Option<Vec<u8>>> {
    if file.metadata()?.len() != length || length < size as u64 {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(length - size as u64))?;
    let mut bytes = vec![0; size];
    file.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::super::{Numbering, pack_tokens};
    use super::*;
    use crate::error::StoreError;

    #[test]
    fn the_last_tokens_of_both_texts_are_read_from_their_files() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("corpus");
        let file = br#"{"model": {"vocab": {"a": 0, "b": 699}}}"#;
        let text = |numbers: &[u32]| [Ok::<_, StoreError>(("text".to_owned(), numbers.to_vec()))];
        let numbering = Numbering { file, tokens: 700, end: Some(699) };
        let data = pack_tokens(text(&[1, 2]), text(&[3]), &out, &numbering, None).unwrap();
        assert_eq!(last_tokens(&out, &data).unwrap(), Some([699, 699]));
        let longer = Data { held_out_bytes: data.held_out_bytes + 2, ..data.clone() };
        assert_eq!(last_tokens(&out, &longer).unwrap(), None, "another length");
        std::fs::remove_file(out.join("held-out.bin")).unwrap();
        assert_eq!(last_tokens(&out, &data).unwrap(), None);
        assert_eq!(last_tokens(&directory.path().join("none"), &data).unwrap(), None);
    }
}
