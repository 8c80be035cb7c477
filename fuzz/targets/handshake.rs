//! Any bytes at any step of the Noise handshake: no panic, no channel.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::channel::Suite;
use muster_core::channel::certificate::Credentials;
use muster_core::channel::handshake::{Answerer, Dialler};
use muster_core::ids::{Digest, RunId};
use muster_core::sign::Identity;
use zeroize::Zeroizing;

#[derive(arbitrary::Arbitrary, Debug)]
struct Case<'a> {
    first: &'a [u8],
    second: &'a [u8],
    third: &'a [u8],
}

fn credentials(secret: u8) -> Credentials {
    let identity = Identity::from_secret(&[secret; 32]);
    Credentials::new(RunId(Digest([9; 32])), &identity, Zeroizing::new([secret + 1; 32]), u64::MAX)
}

fuzz_target!(|case: Case<'_>| {
    let (one, two) = (credentials(1), credentials(3));
    let (dialler, first) = Dialler::start(&one, Suite::ChaChaPoly, None, Zeroizing::new([5; 32]));
    assert!(dialler.receive(case.second, 0).is_err());
    if let Ok((answerer, _)) = Answerer::start(&two, case.first, Zeroizing::new([6; 32])) {
        assert!(answerer.receive(case.third, 0).is_err());
    }
    let (answerer, _) = Answerer::start(&two, &first, Zeroizing::new([7; 32])).expect("an honest dialler");
    assert!(answerer.receive(case.third, 0).is_err());
});
