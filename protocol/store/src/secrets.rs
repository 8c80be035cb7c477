//! Secrets of a member, one file each, for their owner only.

use std::fs;
use std::path::Path;

use muster_core::ids::{hex, unhex};
use muster_core::sign::Identity;
use zeroize::Zeroizing;

use crate::error::{Kind, Result, StoreError};
use crate::files::{self, Care};
use crate::home::Home;

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
        let path = self.file(&format!("{name}.key"))?;
        match read(&path) {
            Err(error) if error.kind() == Kind::Missing => make(&path),
            secret => secret,
        }
    }
}

fn make(path: &Path) -> Result<Zeroizing<[u8; 32]>> {
    let mut secret = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *secret).map_err(|error| {
        let cause = format!("the system gives no randomness ({error})");
        StoreError::new(Kind::Io, path, cause, "start again later")
    })?;
    let line = Zeroizing::new(hex(&*secret) + "\n");
    files::write(path, Care::Secret, |file| file.write_all(line.as_bytes()))?;
    Ok(secret)
}

fn read(path: &Path) -> Result<Zeroizing<[u8; 32]>> {
    let failed = |error| StoreError::io(path, &error);
    let metadata = fs::metadata(path).map_err(failed)?;
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0 {
        let advice = format!("if nobody copied it, run: chmod 600 {}", path.display());
        return Err(StoreError::refused(path, "other users can read or change this secret", advice));
    }
    let corrupt = || StoreError::corrupt(path, "not 64 hexadecimal digits", "restore it from a copy");
    if metadata.len() > 128 {
        return Err(corrupt());
    }
    let bytes = Zeroizing::new(fs::read(path).map_err(failed)?);
    let digits = core::str::from_utf8(&bytes).map_err(|_| corrupt())?;
    unhex(digits.trim()).map(Zeroizing::new).ok_or_else(corrupt)
}

#[cfg(test)]
mod tests {
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
}
