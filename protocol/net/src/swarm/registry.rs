//! Who says that it holds a row of experts: provider records of the table, one key for each row of a run. Only members are
//! kept, each by its own word; that it is true nobody says.

use libp2p::PeerId;
use libp2p::identity::PublicKey;
use libp2p::kad::RecordKey;
use muster_core::ids::{MemberId, Row, RunId};
use muster_core::limits;

/// Providers of a row that a peer keeps; more would not be asked.
pub(super) const PROVIDERS: usize = 64;

/// Where the holders of a row are named. No member's entry has a key of this length.
pub(super) fn key(run: RunId, row: Row) -> RecordKey {
    RecordKey::new(&[run.0.0.as_slice(), &row.0.to_le_bytes()].concat())
}

/// Whether a key is that of a row of this run.
pub(super) fn is_row(run: RunId, key: &RecordKey) -> bool {
    let row = key.as_ref().strip_prefix(&run.0.0).and_then(|row| row.try_into().ok()).map(u16::from_le_bytes);
    row.is_some_and(|row| row < limits::ROWS)
}

/// The member behind a peer, whose name holds its key.
pub(super) fn member(peer: &PeerId) -> Option<MemberId> {
    let key = PublicKey::try_decode_protobuf(peer.as_ref().digest()).ok()?;
    Some(MemberId(key.try_into_ed25519().ok()?.to_bytes()))
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;
    use muster_core::ids::Digest;
    use muster_core::sign::Identity;

    use super::*;

    #[test]
    fn a_peer_has_the_name_of_its_member() {
        let me = Identity::from_secret(&[7; 32]);
        let keypair = Keypair::ed25519_from_bytes(&mut me.secret()[..]).unwrap();
        assert_eq!(member(&keypair.public().to_peer_id()), Some(me.id()));
        assert_eq!(member(&PeerId::random()), None);
    }

    #[test]
    fn keys_are_those_of_rows_of_the_run() {
        let [run, other] = [3, 4].map(|name| RunId(Digest([name; 32])));
        assert!(is_row(run, &key(run, Row(0))) && is_row(run, &key(run, Row(63))));
        assert!(!is_row(run, &key(run, Row(64))) && !is_row(other, &key(run, Row(0))));
        assert!(!is_row(run, &RecordKey::new(&[3; 64])) && !is_row(run, &RecordKey::new(&[3; 33])));
    }
}
