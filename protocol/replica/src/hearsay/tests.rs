use muster_core::codec::{List, encode};
use muster_core::ids::Slot;
use muster_core::manifest::Profile;
use muster_core::messages::gossip::Head;
use muster_core::messages::record::Freeze;
use muster_core::sign::Identity;

use super::*;

const RUN: RunId = RunId(Digest([5; 32]));

fn steward() -> Identity {
    Identity::from_secret(&[1; 32])
}

/// [`Hearsay::hear`] on a member that nobody else has.
fn hear(member: &mut Hearsay, topic: Topic, message: &[u8]) -> (Validity, Option<Misbehaviour>) {
    let shared = Mutex::new(std::mem::replace(member, hearsay(0)));
    let heard = Hearsay::hear(&shared, topic, message);
    *member = shared.into_inner().unwrap();
    heard
}

fn node() -> Identity {
    Identity::from_secret(&[2; 32])
}

/// A member whose ledger has `next` records, with the node seated in rounds 4 and 5.
fn hearsay(next: u64) -> Hearsay {
    let seated = BTreeSet::from([node().id()]);
    Hearsay {
        run: RUN,
        steward: steward().id(),
        next: Height(next),
        members: seated.clone(),
        hosts: BTreeSet::new(),
        heads: BTreeMap::new(),
        seals: BTreeMap::new(),
        seats: BTreeMap::from([(Round(4), seated.clone()), (Round(5), seated)]),
        commits: BTreeMap::new(),
    }
}

fn record(height: u64, previous: u8, what: u8) -> Record {
    Record { height: Height(height), previous: Digest([previous; 32]), body: Body::Close(Digest([what; 32])) }
}

fn told(record: &Record) -> Vec<u8> {
    encode(&Gossiped::Record(steward().sign(RUN, record)))
}

fn commit(round: u32, what: u8) -> Commit {
    Commit {
        round: Round(round),
        head: Digest::default(),
        state: Digest::default(),
        slot: Slot(0),
        seats: 1,
        route: None,
        leaves: 1,
        profile: Profile::Exact,
        loss: 0,
        root: Digest([what; 32]),
    }
}

fn said(who: &Identity, round: u32, what: u8) -> Vec<u8> {
    encode(&Gossiped::Commit(who.sign(RUN, &commit(round, what))))
}

fn split(known: &Record, other: &Record) -> Option<Misbehaviour> {
    let (known, other) = (known.head(), other.head());
    Some(Misbehaviour::SplitView(SplitView { height: Height(7), known, other }))
}

#[test]
fn another_record_of_a_height_splits_the_view() {
    let (ours, theirs) = (record(7, 1, 1), record(7, 1, 2));
    // Taken first, heard after.
    let mut member = hearsay(8);
    assert_eq!(member.took(&ours), (Vec::new(), false));
    assert_eq!(hear(&mut member, Topic::Records, &told(&ours)), (Validity::Accept, None));
    assert_eq!(hear(&mut member, Topic::Records, &told(&theirs)), (Validity::Accept, split(&ours, &theirs)));
    // Heard first, taken after.
    let mut member = hearsay(7);
    assert_eq!(hear(&mut member, Topic::Records, &told(&theirs)), (Validity::Accept, None));
    assert_eq!(member.took(&theirs), (Vec::new(), true));
    assert_eq!(member.took(&ours).0, Vec::from_iter(split(&theirs, &ours)));
    // Both only heard.
    let mut member = hearsay(0);
    assert_eq!(hear(&mut member, Topic::Records, &told(&theirs)), (Validity::Accept, None));
    assert_eq!(hear(&mut member, Topic::Records, &told(&ours)), (Validity::Accept, split(&theirs, &ours)));
}

#[test]
fn damaged_messages_of_every_kind_leave_no_trace() {
    let mut member = hearsay(8);
    let ours = record(7, 1, 1);
    let head = Gossiped::Head(steward().sign(RUN, &Head { height: ours.height, head: ours.head() }));
    for (topic, whole) in [
        (Topic::Records, told(&ours)),
        (Topic::Records, encode(&head)),
        (Topic::Commits, said(&node(), 4, 1)),
    ] {
        let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
        let changed = (0..8 * whole.len()).map(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        });
        let longer = [[&whole[..], &[0]].concat(), vec![0xff; 1 << 16]];
        for bytes in cut.chain(changed).chain(longer) {
            let (validity, finding) = hear(&mut member, topic, &bytes);
            assert!(validity != Validity::Accept && finding.is_none(), "{topic:?} {bytes:?}");
        }
        let elsewhere = [Topic::Records, Topic::Commits].into_iter().find(|other| *other != topic);
        assert_eq!(hear(&mut member, elsewhere.unwrap(), &whole), (Validity::Reject, None));
    }
    assert!(member.heads.is_empty() && member.seals.is_empty() && member.commits.is_empty());
}

#[test]
fn a_head_alone_and_the_head_that_a_later_record_names_count_too() {
    let (ours, theirs) = (record(7, 1, 1), record(7, 1, 2));
    let mut member = hearsay(8);
    member.took(&ours);
    let head = |of: &Record| {
        encode(&Gossiped::Head(steward().sign(RUN, &Head { height: of.height, head: of.head() })))
    };
    assert_eq!(hear(&mut member, Topic::Records, &head(&ours)), (Validity::Accept, None));
    assert_eq!(hear(&mut member, Topic::Records, &head(&theirs)), (Validity::Accept, split(&ours, &theirs)));
    let next = |previous: &Record| Record { previous: previous.head(), ..record(8, 0, 3) };
    let mut member = hearsay(8);
    member.took(&ours);
    assert_eq!(
        hear(&mut member, Topic::Records, &told(&next(&theirs))),
        (Validity::Accept, split(&ours, &theirs))
    );
    let mut member = hearsay(8);
    member.took(&ours);
    assert_eq!(hear(&mut member, Topic::Records, &told(&next(&ours))), (Validity::Accept, None));
}

#[test]
fn nobody_else_can_split_a_view() {
    let (ours, theirs) = (record(7, 1, 1), record(7, 1, 2));
    let mut member = hearsay(8);
    member.took(&ours);
    let forged = encode(&Gossiped::Record(node().sign(RUN, &theirs)));
    let elsewhere = encode(&Gossiped::Record(steward().sign(RunId(Digest([6; 32])), &theirs)));
    let mut damaged = told(&theirs);
    *damaged.last_mut().unwrap() ^= 1;
    let head = encode(&Gossiped::Head(node().sign(RUN, &Head { height: Height(7), head: theirs.head() })));
    for lie in [forged, elsewhere, damaged, head, Vec::new(), vec![0xff; 100], told(&theirs)[..50].to_vec()] {
        assert_eq!(hear(&mut member, Topic::Records, &lie), (Validity::Reject, None));
    }
    assert_eq!(hear(&mut member, Topic::Commits, &told(&theirs)), (Validity::Reject, None));
    assert_eq!(hear(&mut member, Topic::Records, &said(&node(), 4, 1)), (Validity::Reject, None));
}

#[test]
fn far_away_is_of_no_use() {
    let mut member = hearsay(1000);
    for height in [0, 1000 - BEHIND - 1, 1000 + AHEAD + 1, u64::MAX - 1, u64::MAX] {
        assert_eq!(hear(&mut member, Topic::Records, &told(&record(height, 1, 1))), (Validity::Ignore, None));
    }
    for height in 1000 - BEHIND..=1000 + AHEAD {
        let mut member = hearsay(1000);
        assert_eq!(hear(&mut member, Topic::Records, &told(&record(height, 1, 1))), (Validity::Accept, None));
    }
    assert!(member.heads.is_empty());
}

#[test]
fn two_commitments_of_one_round_are_evidence_once() {
    let mut member = hearsay(8);
    assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 4, 1)), (Validity::Accept, None));
    assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 4, 1)), (Validity::Ignore, None));
    assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 5, 2)), (Validity::Accept, None));
    let (validity, found) = hear(&mut member, Topic::Commits, &said(&node(), 4, 3));
    assert_eq!(validity, Validity::Accept);
    let Some(Misbehaviour::Equivocation(Evidence::Equivocation(pair))) = found else { panic!("no evidence") };
    assert_eq!(*pair.first.verify(RUN).unwrap(), commit(4, 1));
    assert_eq!(*pair.second.verify(RUN).unwrap(), commit(4, 3));
    assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 4, 4)), (Validity::Ignore, None));
}

#[test]
fn a_freeze_with_another_commitment_than_was_gossiped_is_evidence() {
    let freeze = |what| {
        let commits = List::new(vec![node().sign(RUN, &commit(4, what))]).unwrap();
        let body = Body::Freeze(Freeze { round: Round(4), state: Digest::default(), commits });
        Record { body, ..record(7, 1, 1) }
    };
    let mut member = hearsay(8);
    hear(&mut member, Topic::Commits, &said(&node(), 4, 1));
    assert!(member.took(&freeze(1)).0.is_empty());
    let mut member = hearsay(8);
    hear(&mut member, Topic::Commits, &said(&node(), 4, 1));
    assert!(matches!(member.took(&freeze(2)).0[..], [Misbehaviour::Equivocation(_)]));
    let mut member = hearsay(8);
    member.took(&freeze(2));
    assert!(matches!(hear(&mut member, Topic::Commits, &said(&node(), 4, 1)), (Validity::Accept, Some(_))));
}

#[test]
fn chan_11_what_is_heard_moves_nothing_and_what_is_taken_does() {
    let mut member = hearsay(7);
    let ahead = record(7, 1, 1);
    let head = Gossiped::Head(steward().sign(RUN, &Head { height: Height(8), head: Digest([4; 32]) }));
    for (topic, message) in [
        (Topic::Records, told(&ahead)),
        (Topic::Records, encode(&head)),
        (Topic::Commits, said(&node(), 4, 1)),
    ] {
        assert_eq!(hear(&mut member, topic, &message), (Validity::Accept, None));
    }
    let before = hearsay(7);
    assert_eq!((member.next, &member.members), (before.next, &before.members));
    assert_eq!(member.seats, before.seats, "a record that was heard seats nobody");
    // Nor does it stand against the record that is pulled: that alone is told as sealed.
    assert_eq!(member.took(&ahead), (Vec::new(), true));
}

#[test]
fn chan_22_seals_are_bounded_in_number_too() {
    let mut member = hearsay(8);
    let named = |what| {
        encode(&Gossiped::Head(steward().sign(RUN, &Head { height: Height(7), head: Digest([what; 32]) })))
    };
    assert_eq!(hear(&mut member, Topic::Records, &named(1)), (Validity::Accept, None));
    let (validity, found) = hear(&mut member, Topic::Records, &named(2));
    assert!(validity == Validity::Accept && matches!(found, Some(Misbehaviour::SplitView(_))));
    for what in 3..100 {
        assert_eq!(hear(&mut member, Topic::Records, &named(what)), (Validity::Ignore, None));
    }
    assert_eq!(member.seals.len(), 2);
    assert!([1, 2].iter().all(|what| member.seal(Height(7), &Digest([*what; 32])).is_some()));
}

#[test]
fn only_the_seated_are_heard() {
    let mut member = hearsay(8);
    let stranger = Identity::from_secret(&[3; 32]);
    assert_eq!(hear(&mut member, Topic::Commits, &said(&stranger, 4, 1)), (Validity::Ignore, None));
    assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 3, 1)), (Validity::Ignore, None));
    assert_eq!(hear(&mut member, Topic::Commits, &said(&node(), 6, 1)), (Validity::Ignore, None));
    let mut forged = said(&node(), 4, 1);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(hear(&mut member, Topic::Commits, &forged), (Validity::Reject, None));
    assert!(member.commits.is_empty());
    assert!(member.knows(&node().id()) && member.knows(&steward().id()) && !member.knows(&stranger.id()));
}
