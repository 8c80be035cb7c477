//! The bytes of a journal, for the database to read and to repair while the file stays as it is.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex};

use muster_core::lock::lock;
use redb::StorageBackend;
use redb::backends::FileBackend;

use crate::error::{Result, StoreError};
use crate::regular;

/// Bytes of a page: that of the database, and of most file systems.
const PAGE: usize = 4096;
/// Pages read at once.
const RUN: usize = 64;

/// Storage of a database. In memory are only pages that are not zero, and those that were written: a hole of gigabytes, which
/// takes no room on the disk, takes none here either. Copies share their pages.
#[derive(Clone)]
pub(super) struct Image(Arc<Inner>);

struct Inner {
    /// What lies below the pages in memory; nothing below a copy.
    file: Option<FileBackend>,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    /// Bytes of the whole.
    length: u64,
    /// Bytes that the file below gives: it may have been cut in the database's eyes.
    below: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Image {
    /// Over an open file, which must not change meanwhile: pages are read when they are wanted, and what is written stays here.
    ///
    /// # Errors
    /// What the system reports.
    pub(super) fn over(path: &Path, file: File) -> Result<Self> {
        let length = length(&file).map_err(|error| StoreError::io(path, &error))?;
        let file = FileBackend::new(file).map_err(|error| StoreError::io(path, &io::Error::other(error)))?;
        let pages = Mutex::new(Pages { length, below: length, pages: BTreeMap::new() });
        Ok(Self(Arc::new(Inner { file: Some(file), pages })))
    }

    /// A copy in memory of a file of at most `most` bytes, which may change meanwhile: then a database finds it damaged.
    ///
    /// # Errors
    /// As [`regular::open`].
    pub(super) fn copy(path: &Path, most: u64) -> Result<Self> {
        let mut file = regular::open(path, most)?;
        let pages = read(&mut file).map_err(|error| StoreError::io(path, &error))?;
        Ok(Self(Arc::new(Inner { file: None, pages: Mutex::new(pages) })))
    }

    /// Gives the memory back. A database that is left behind, because closing it would panic, holds on to its storage.
    pub(super) fn clear(&self) {
        *lock(&self.0.pages) = Pages::default();
    }
}

impl Pages {
    /// Refuses what lies beyond the end.
    fn within(&self, offset: u64, bytes: usize) -> io::Result<()> {
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it ends too early")),
        }
    }

    /// Reads what lies below: zeros where there is no file.
    fn read_below(&self, file: Option<&FileBackend>, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = self.below.saturating_sub(offset).min(out.len() as u64) as usize;
        let (there, beyond) = out.split_at_mut(there);
        beyond.fill(0);
        match file {
            Some(file) if !there.is_empty() => file.read(offset, there),
            _ => {
                there.fill(0);
                Ok(())
            }
        }
    }
}

impl StorageBackend for Image {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.0.pages).length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let pages = lock(&self.0.pages);
        pages.within(offset, out.len())?;
        pages.read_below(self.0.file.as_ref(), offset, out)?;
        let end = offset + out.len() as u64;
        for (number, page) in pages.pages.range(offset / PAGE as u64..end.div_ceil(PAGE as u64)) {
            let begin = number * PAGE as u64;
            let (from, to) = (begin.max(offset), (begin + PAGE as u64).min(end));
            let place = |at: u64, base: u64| (at - base) as usize;
            out[place(from, offset)..place(to, offset)]
                .copy_from_slice(&page[place(from, begin)..place(to, begin)]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut pages = lock(&self.0.pages);
        pages.within(offset, data.len())?;
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (number, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let (now, later) = rest.split_at(rest.len().min(PAGE - within));
            if !pages.pages.contains_key(&number) {
                let mut page = Box::new([0; PAGE]);
                pages.read_below(self.0.file.as_ref(), number * PAGE as u64, &mut page[..])?;
                pages.pages.insert(number, page);
            }
            if let Some(page) = pages.pages.get_mut(&number) {
                page[within..within + now.len()].copy_from_slice(now);
            }
            (at, rest) = (at + now.len() as u64, later);
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut pages = lock(&self.0.pages);
        // What is cut off reads as zeros if the whole grows again.
        pages.below = pages.below.min(length);
        pages.pages.split_off(&length.div_ceil(PAGE as u64));
        if let Some(page) = pages.pages.get_mut(&(length / PAGE as u64)) {
            page[(length % PAGE as u64) as usize..].fill(0);
        }
        pages.length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("length", &lock(&self.0.pages).length).finish_non_exhaustive()
    }
}

fn length(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

/// The pages of a file that are not zero.
fn read(file: &mut File) -> io::Result<Pages> {
    let mut pages = Pages { length: length(file)?, ..Pages::default() };
    let mut run = vec![0; RUN * PAGE];
    let mut at = 0;
    while at < pages.length {
        at = data_from(file, at)?.min(pages.length) / PAGE as u64 * PAGE as u64;
        file.seek(SeekFrom::Start(at))?;
        let most = (pages.length - at).min(run.len() as u64);
        let found = fill(&mut file.take(most), &mut run)?;
        for (number, page) in (at / PAGE as u64..).zip(run[..found].chunks(PAGE)) {
            if page.iter().any(|byte| *byte != 0) {
                let mut kept = Box::new([0; PAGE]);
                kept[..page.len()].copy_from_slice(page);
                pages.pages.insert(number, kept);
            }
        }
        // A file that becomes shorter meanwhile is damaged, as the database will find.
        if (found as u64) < most {
            break;
        }
        at += found as u64;
    }
    Ok(pages)
}

/// Reads until the run is full or the file ends; how many bytes.
fn fill(file: &mut impl Read, run: &mut [u8]) -> io::Result<usize> {
    let mut found = 0;
    while found < run.len() {
        match file.read(&mut run[found..]) {
            Ok(0) => break,
            Ok(read) => found += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Where a file has data again, this place or a later one: holes are not read. Any place where that cannot be told.
fn data_from(file: &File, at: u64) -> io::Result<u64> {
    #[cfg(target_os = "linux")]
    return match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        // Nothing but a hole up to the end.
        Err(rustix::io::Errno::NXIO) => length(file),
        Ok(data) => Ok(data),
        Err(_) => Ok(at),
    };
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_written_lies_over_a_file_that_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let bytes: Vec<u8> = (0..3 * PAGE + 100).map(|place| (place % 251) as u8 + 1).collect();
        fs::write(&path, &bytes).unwrap();
        for image in [Image::over(&path, File::open(&path).unwrap()), Image::copy(&path, u64::MAX)] {
            let (image, mut mirror) = (image.unwrap(), bytes.clone());
            let agree = |mirror: &[u8]| {
                let mut read = vec![7; mirror.len()];
                image.read(0, &mut read).unwrap();
                assert!(read == mirror && image.len().unwrap() == mirror.len() as u64);
                let mut middle = vec![7; 5000.min(mirror.len() - 77)];
                image.read(77, &mut middle).unwrap();
                assert!(middle == mirror[77..77 + middle.len()]);
            };
            agree(&mirror);
            for (offset, count) in [(10, 20), (PAGE - 5, 10), (PAGE, PAGE), (100, 2 * PAGE), (3 * PAGE, 100)]
            {
                image.write(offset as u64, &vec![255; count]).unwrap();
                mirror[offset..offset + count].fill(255);
                agree(&mirror);
            }
            for length in [2 * PAGE + 50, 4 * PAGE, PAGE, 3 * PAGE] {
                image.set_len(length as u64).unwrap();
                mirror.resize(length, 0);
                agree(&mirror);
            }
            assert!(image.read(3 * PAGE as u64 - 1, &mut [0; 2]).is_err());
            assert!(image.write(u64::MAX, &[0; 2]).is_err());
            image.clear();
            assert_eq!(image.len().unwrap(), 0);
        }
        assert!(fs::read(&path).unwrap() == bytes);
    }

    #[test]
    fn a_hole_takes_no_memory_wherever_it_lies() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = File::create(&path).unwrap();
        for place in [0, 1 << 30, 3 << 30] {
            file.seek(SeekFrom::Start(place + 5)).unwrap();
            io::Write::write_all(&mut file, b"data").unwrap();
        }
        file.set_len(4 << 30).unwrap();
        let image = Image::copy(&path, 4 << 30).unwrap();
        assert_eq!(lock(&image.0.pages).pages.len(), 3);
        let mut read = [7; 10];
        image.read((3 << 30) + 3, &mut read).unwrap();
        assert_eq!(read, *b"\0\0data\0\0\0\0");
        image.read(2 << 30, &mut read).unwrap();
        assert_eq!(read, [0; 10]);
        assert!(Image::copy(&path, (4 << 30) - 1).is_err());
    }
}
