//! How many leaves a member is asked for.

use muster_core::manifest::Admission;
use muster_core::messages::enrol::Role;
use muster_core::messages::round::Commit;
use muster_core::sign::Signed;

use crate::chain::{Chain, commits, person};

fn quotas(chain: &Chain) -> Vec<u32> {
    chain.ledger.current().expect("a round").seats().iter().map(|seat| seat.quota).collect()
}

/// Everybody's commitments, the first member's with this number of leaves.
fn first_commits(chain: &Chain, leaves: u32) -> Vec<Signed<Commit>> {
    let mut commits = commits(&chain.ledger);
    let full = chain.ledger.check_commit(&commits[0]).expect("a good commitment").into_inner();
    commits[0] = person(10).sign(chain.run(), &Commit { leaves, ..full });
    commits
}

#[test]
fn ledger_15_pace_falls_to_what_was_managed_and_grows_by_one() {
    let mut chain = Chain::new(Admission::closed(2, 0, 64));
    (10..12).for_each(|who| chain.invite(who, Role::Node, true));
    chain.start();
    assert_eq!(quotas(&chain), [16, 16]);
    for (committed, quota) in [(3, 3), (3, 4), (4, 5), (2, 2), (2, 3)] {
        chain.freeze_of(first_commits(&chain, committed)).expect("a freeze");
        chain.inputs(&[]).expect("inputs");
        chain.outcome(&[10, 11], Vec::new()).expect("an outcome");
        assert_eq!(quotas(&chain), [quota, 16], "after {committed} leaves");
    }
    chain.freeze_of(first_commits(&chain, 4)).expect_err("more than the quota");
    // Whoever commits nothing fails for it; its pace stays.
    let others = commits(&chain.ledger).split_off(1);
    chain.freeze_of(others).expect("a freeze");
    assert_eq!((chain.member(10).pace, chain.member(10).failures), (3, 1));
}
