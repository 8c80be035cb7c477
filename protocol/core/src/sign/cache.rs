//! Signatures that were good before.
//!
//! A steward checks a commitment when it comes and again in the Freeze, and whoever follows a run meets the same result
//! on the board and in the Outcome. To check an Ed25519 signature takes far longer than to hash what it covers.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex};

use crate::hash::{Domain, Hasher};
use crate::ids::{Digest, MemberId};
use crate::lock::lock;

/// Names of signatures in each of two generations: about 3 MiB in all.
const NAMES: usize = 1 << 15;

static GOOD: LazyLock<Mutex<Generations>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Generations {
    young: BTreeSet<Digest>,
    old: BTreeSet<Digest>,
}

impl Generations {
    fn has(&self, name: &Digest) -> bool {
        self.young.contains(name) || self.old.contains(name)
    }

    fn add(&mut self, name: Digest) {
        self.young.insert(name);
        if self.young.len() >= NAMES {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

/// Whether this signer's signature of a digest is good: by `check`, unless it was so before. Bad ones are not remembered.
pub(super) fn is_good(
    signed: &Digest,
    signer: &MemberId,
    signature: &[u8; 64],
    check: impl FnOnce() -> bool,
) -> bool {
    // All three are in the name: the same signature of something else, or by somebody else, is another one. In four parts,
    // as no signed hash and no name of a message is (SIGN-1, SIGN-5).
    let name = Hasher::new(Domain::SIGN).part(&signed.0).part(&signer.0).part(signature).part(&[]).finish();
    if lock(&GOOD).has(&name) {
        return true;
    }
    let is_good = check();
    if is_good {
        lock(&GOOD).add(name);
    }
    is_good
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_good_is_not_checked_again_and_nothing_else_passes() {
        let (digest, signer, signature) = (Digest([91; 32]), MemberId([92; 32]), [93; 64]);
        let never = || -> bool { panic!("it was good before") };
        assert!(!is_good(&digest, &signer, &signature, || false));
        assert!(is_good(&digest, &signer, &signature, || true));
        assert!(is_good(&digest, &signer, &signature, never));
        assert!(!is_good(&Digest([90; 32]), &signer, &signature, || false));
        assert!(!is_good(&digest, &MemberId([90; 32]), &signature, || false));
        assert!(!is_good(&digest, &signer, &[90; 64], || false));
    }

    #[test]
    fn old_names_make_room() {
        let mut names = Generations::default();
        let name = |number: usize| Hasher::new(Domain::SIGN).part(&number.to_le_bytes()).finish();
        (0..3 * NAMES).for_each(|number| names.add(name(number)));
        assert!(names.young.len() + names.old.len() <= 2 * NAMES);
        assert!(names.has(&name(3 * NAMES - 1)) && !names.has(&name(0)));
    }
}
