//! Entries of the table: where a member's channel can be dialled, signed by the member.

use muster_core::codec::decode;
use muster_core::error::Reject;
use muster_core::ids::{MemberId, RunId};
use muster_core::messages::gossip::Whereabouts;
use muster_core::sign::{Signed, Verified};

/// Longest entry.
pub(super) const ENTRY_BYTES: usize = 4096;

/// Where a member's entry is kept.
pub(super) fn key(run: RunId, member: &MemberId) -> Vec<u8> {
    [run.0.0, member.0].concat()
}

/// Whose entry a key is for; `None` for another run's.
pub(super) fn member(run: RunId, key: &[u8]) -> Option<MemberId> {
    let name = key.strip_prefix(&run.0.0)?;
    name.try_into().ok().map(MemberId)
}

/// Checks an entry against its key.
///
/// # Errors
/// [`Reject`] unless the member that the key names has signed it for this run.
pub(super) fn read(run: RunId, key: &[u8], entry: &[u8]) -> Result<Verified<Whereabouts>, Reject> {
    let member = member(run, key).ok_or(Reject::WrongRun)?;
    // Before it is decoded: anybody may put anything into a table.
    if entry.len() > ENTRY_BYTES {
        let length = entry.len() as u64;
        return Err(Reject::TooLong { what: "an entry", length, limit: ENTRY_BYTES as u64 });
    }
    let said = decode::<Signed<Whereabouts>>(entry)?.verify(run)?;
    if said.author() != member {
        return Err(Reject::NotEntitled("say where another member is"));
    }
    Ok(said)
}

/// The later statement. Of two with one time the first stays, so that nobody can alternate them.
pub(super) fn later(
    held: Option<Verified<Whereabouts>>,
    said: Verified<Whereabouts>,
) -> Verified<Whereabouts> {
    match held {
        Some(held) if held.time >= said.time => held,
        _ => said,
    }
}

#[cfg(test)]
mod tests {
    use muster_core::codec::{List, Text, encode};
    use muster_core::ids::Digest;
    use muster_core::sign::Identity;

    use super::*;

    const RUN: RunId = RunId(Digest([3; 32]));

    fn said(identity: &Identity, time: u64) -> Signed<Whereabouts> {
        let addresses = List::new(vec![Text::new("example.org:7777").unwrap()]).unwrap();
        identity.sign(RUN, &Whereabouts { addresses, time })
    }

    #[test]
    fn only_the_member_says_where_it_is() {
        let (me, other) = (Identity::from_secret(&[1; 32]), Identity::from_secret(&[2; 32]));
        let entry = encode(&said(&me, 5));
        let own = key(RUN, &me.id());
        assert_eq!(read(RUN, &own, &entry).unwrap().time, 5);
        let refused = read(RUN, &key(RUN, &other.id()), &entry).unwrap_err();
        assert_eq!(refused, Reject::NotEntitled("say where another member is"));
        let another = RunId(Digest([4; 32]));
        assert_eq!(read(another, &own, &entry).unwrap_err(), Reject::WrongRun);
        assert_eq!(read(another, &key(another, &me.id()), &entry).unwrap_err(), Reject::WrongRun);
        for damaged in 0..entry.len() {
            let mut forged = entry.clone();
            forged[damaged] ^= 1;
            assert!(read(RUN, &own, &forged).is_err(), "byte {damaged}");
        }
        for garbage in [&[][..], &[0; ENTRY_BYTES + 1], &entry[..entry.len() - 1]] {
            assert!(read(RUN, &own, garbage).is_err());
        }
        assert!(read(RUN, &own[..63], &entry).is_err());
    }

    #[test]
    fn the_later_statement_stays() {
        let me = Identity::from_secret(&[1; 32]);
        let at = |time| said(&me, time).verify(RUN).unwrap();
        assert_eq!(later(None, at(1)).time, 1);
        assert_eq!(later(Some(at(1)), at(2)).time, 2);
        assert_eq!(later(Some(at(2)), at(1)).time, 2);
    }
}
