//! The pages as files, to be published by any web server.

use std::fs;
use std::io;
use std::path::Path;

use crate::site::Site;

/// Writes every page but those of records into a new or empty folder; returns how many. The site must be one for files.
///
/// # Errors
/// What the system says, with the file.
pub fn export(site: &Site, folder: &Path) -> io::Result<usize> {
    let named = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"))
    };
    fs::create_dir_all(folder).map_err(named(folder))?;
    if fs::read_dir(folder).map_err(named(folder))?.next().is_some() {
        return Err(io::Error::other(format!("{}: is not empty; name a new folder", folder.display())));
    }
    let mut written = 0;
    for path in site.pages() {
        // Evidence may lie elsewhere: then the pages say so.
        let Some(page) = site.page(&path, "") else { continue };
        let file = folder.join(&path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).map_err(named(parent))?;
        }
        fs::write(&file, &page.body).map_err(named(&file))?;
        written += 1;
    }
    Ok(written)
}
