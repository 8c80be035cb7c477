//! Secrets of a member, one file each, for their owner only.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use muster_core::ids::{hex, unhex};
use muster_core::sign::Identity;
use zeroize::Zeroizing;

use crate::error::{Kind, Result, StoreError};
use crate::files::{self, Care};
use crate::home::Home;
use crate::regular;

impl Home {
    /// The identity in `identity.key`; a new one the first time.
    ///
    /// # Errors
    /// As [`Self::secret`].
    pub fn identity(&self) -> Result<Identity> {
        Ok(Identity::from_secret(&*self.secret("identity")?))
    }

    /// The 32 secret bytes in `<name>.key`; drawn from the system's randomness the first time.
    ///
    /// # Errors
    /// [`Kind::Refused`] when others may read the file; [`Kind::Corrupt`] when it is no key, which is never
    /// replaced; what the system reports.
    pub fn secret(&self, name: &str) -> Result<Zeroizing<[u8; 32]>> {
        kept(&self.file(&format!("{name}.key"))?)
    }

    /// Writes a file of this name in the home, as [`Home::write_file`] does, for its owner only.
    ///
    /// # Errors
    /// As there.
    pub fn write_secret(&self, name: &str, bytes: &[u8]) -> Result<()> {
        files::write(&self.file(name)?, Care::Secret, |file| file.write_all(bytes))
    }
}

/// The 32 secret bytes in a key file; drawn from the system's randomness where there is none.
///
/// # Errors
/// As of [`key`]; what the system reports.
pub fn kept(path: &Path) -> Result<Zeroizing<[u8; 32]>> {
    match key(path) {
        Err(error) if error.kind() == Kind::Missing => make(path),
        secret => secret,
    }
}

/// The 32 secret bytes in a key file.
///
/// # Errors
/// [`Kind::Missing`]; [`Kind::Refused`] when others may read the file; [`Kind::Corrupt`] when it is no key; what the system
/// reports.
pub fn key(path: &Path) -> Result<Zeroizing<[u8; 32]>> {
    let failed = |error| StoreError::io(path, &error);
    let file = regular::open(path, u64::MAX)?;
    // Of the open file, not of its name, which could be given to another one meanwhile.
    if is_open_to_others(&file).map_err(failed)? {
        let advice = format!("if nobody copied it, run: chmod 600 {}", path.display());
        return Err(StoreError::refused(path, "other users can read or change this secret", advice));
    }
    let corrupt = || StoreError::corrupt(path, "not 64 hexadecimal digits", "restore it from a copy");
    // Room for all of it: a buffer that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST_KEY + 1));
    file.take(LONGEST_KEY as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > LONGEST_KEY {
        return Err(corrupt());
    }
    let digits = core::str::from_utf8(&bytes).map_err(|_| corrupt())?;
    unhex(digits.trim()).map(Zeroizing::new).ok_or_else(corrupt)
}

/// A file's text, that only its owner should read: others lose the access that they have.
///
/// # Errors
/// [`Kind::Missing`]; [`Kind::Corrupt`] for what is no text; what the system reports.
pub fn text(path: &Path) -> Result<Zeroizing<String>> {
    let failed = |error| StoreError::io(path, &error);
    let file = regular::open(path, regular::TEXT_BYTES)?;
    #[cfg(unix)]
    if is_open_to_others(&file).map_err(failed)? {
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        file.set_permissions(own).map_err(failed)?;
    }
    let length = file.metadata().map_err(failed)?.len();
    let mut bytes =
        Zeroizing::new(Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(1)));
    file.take(regular::TEXT_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    let text = core::str::from_utf8(&bytes).map(|text| Zeroizing::new(text.to_owned()));
    text.map_err(|_| StoreError::corrupt(path, "is not UTF-8 text", "restore it from a copy"))
}

/// Characters of a key file, white space around the digits included.
const LONGEST_KEY: usize = 128;

#[cfg(unix)]
fn is_open_to_others(file: &File) -> std::io::Result<bool> {
    let permissions = file.metadata()?.permissions();
    Ok(std::os::unix::fs::PermissionsExt::mode(&permissions) & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_: &File) -> std::io::Result<bool> {
    Ok(false)
}

fn make(path: &Path) -> Result<Zeroizing<[u8; 32]>> {
    let mut secret = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *secret).map_err(|error| {
        let cause = format!("the system gives no randomness ({error})");
        StoreError::new(Kind::Io, path, cause, "start again later")
    })?;
    // Erased like the secret: the text is as good as the key.
    let line = Zeroizing::new(hex(&*secret) + "\n");
    files::write(path, Care::Secret, |file| file.write_all(line.as_bytes()))?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_secret_stays_and_secrets_differ() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let (me, coins) = (home.identity().unwrap().id(), home.secret("coins").unwrap());
        drop(home);
        let home = Home::open(directory.path()).unwrap();
        assert_eq!(home.identity().unwrap().id(), me);
        assert_eq!(home.secret("coins").unwrap(), coins);
        assert_ne!(home.secret("identity").unwrap(), coins);
        assert_eq!(home.secret("../coins").unwrap_err().kind(), Kind::Refused);
    }

    #[test]
    fn a_damaged_key_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        home.identity().unwrap();
        let path = home.at("identity.key");
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len(), 65);
        for length in 0..64 {
            fs::write(&path, &whole[..length]).unwrap();
            let error = home.identity().err().unwrap();
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains("identity.key"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), &whole[..length]);
        }
        fs::write(&path, vec![b'0'; 1 << 20]).unwrap();
        assert_eq!(home.identity().err().unwrap().kind(), Kind::Corrupt);
    }

    #[cfg(unix)]
    #[test]
    fn a_key_is_for_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        home.identity().unwrap();
        let path = home.at("identity.key");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for mode in [0o640, 0o604, 0o620, 0o644] {
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let error = home.identity().err().unwrap();
            assert_eq!(error.kind(), Kind::Refused);
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_secret_text_is_for_its_owner_from_now_on() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let path = home.at("ticket");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        home.write_file("ticket", b"before").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert_eq!(*text(&path).unwrap(), "before");
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        home.write_secret("ticket", b"after").unwrap();
        assert_eq!(mode(), 0o600);
        assert_eq!(*text(&path).unwrap(), "after");
        assert_eq!(text(&home.at("nothing")).unwrap_err().kind(), Kind::Missing);
    }
}
