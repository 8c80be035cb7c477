use super::*;
use crate::codec::{List, Real};
use crate::coins::drawn_leaves;
use crate::ids::{Digest, ShardId, Slot};
use crate::ledger::Stage;
use crate::ledger::fixture::chain::{Chain, manifest, node, steward, verifier, with_rows};
use crate::ledger::terms::Terms;
use crate::manifest::{Family, Manifest, Mixture, Rollback};
use crate::messages::audit::{FindingKind, Jury};
use crate::messages::record::{Ban, Body, Credit, Rewind};

/// Four nodes on two rows, of which each is held; nothing is audited unless a row is thin.
fn two_by_two(change: impl FnOnce(&mut Mixture)) -> Manifest {
    let mut manifest = with_rows(manifest(4), 2, 0);
    manifest.audit.share_ppm = 0;
    manifest.admission.newcomer_ppm = 0;
    (manifest.training.rounds, manifest.retention.contributions) = (8, 8);
    let limit = Real::new(0.5).unwrap();
    manifest.rollback = Rollback { limit, most_rounds: 2, spacing: 3 };
    if let Family::Mixture(mixture) = &mut manifest.model.family {
        (mixture.few, mixture.held, mixture.lag) = (3, 2, 3);
        change(mixture);
    }
    manifest
}

fn begun() -> Chain {
    Chain::begin_with(two_by_two(|_| {}))
}

/// Credit for what the nodes of a row contributed to a round, or for the first `most` of them.
fn credits(chain: &Chain, round: u32, row: u16, most: usize) -> Vec<Credit> {
    let view = chain.ledger.round(Round(round)).unwrap();
    let leaves = |m| drawn_leaves(m, chain.ledger.manifest().audit.leaves);
    let of_row = view.commitments().filter(|(slot, _)| view.row_of(*slot) == Row(row)).take(most);
    let credit = |commit: &WeightedCommit| Credit {
        verdict: Digest([1; 32]),
        round: view.round(),
        member: commit.author,
        verifier: verifier(0).id(),
        leaves: leaves(commit.commit.leaves),
    };
    of_row.map(|(_, commit)| credit(commit)).collect()
}

/// Updates of trunk and rows so far.
fn steps(chain: &Chain) -> Vec<u32> {
    chain.ledger.state().shards.iter().map(|shard| shard.step).collect()
}

fn ban(chain: &mut Chain, culprit: MemberId, round: u32) -> Digest {
    let evidence = Digest([4; 32]);
    chain.seal(Body::Ban(Ban {
        culprit,
        effective: chain.ledger.first_round_without(),
        round: Round(round),
        finding: FindingKind::LeafMismatch,
        evidence,
        accuser: steward().id(),
        jury: Jury::default(),
    }));
    evidence
}

#[test]
fn stand_10_all_contributions_to_a_thin_row_are_audited() {
    let rates = |few| {
        let mut chain = Chain::begin_with(two_by_two(|mixture| (mixture.few, mixture.held) = (few, 0)));
        chain.freeze(0..4);
        let view = chain.ledger.current().unwrap();
        view.commitments().map(|(_, commit)| commit.audit_ppm).collect::<Vec<_>>()
    };
    assert_eq!(rates(3), [ALWAYS; 4]);
    assert_eq!(rates(2), [0; 4], "two contributions are not fewer than two");
    // Who sits there and says nothing makes a row no thicker.
    let mut chain = Chain::begin_with(two_by_two(|mixture| (mixture.few, mixture.held) = (2, 0)));
    let view = chain.ledger.current().unwrap();
    let absent =
        (0..4).find(|number| view.row_of(view.slot_of(&node(*number).id()).unwrap()) == Row(0)).unwrap();
    chain.freeze((0..4).filter(|number| *number != absent));
    let view = chain.ledger.current().unwrap();
    for (slot, commit) in view.commitments() {
        assert_eq!(commit.audit_ppm, if view.row_of(slot) == Row(0) { ALWAYS } else { 0 });
    }
}

#[test]
fn row_5_a_held_row_takes_no_step_before_all_its_contributions_have_passed() {
    let mut chain = begun();
    chain.finish_round();
    assert_eq!(steps(&chain), [1, 0, 0], "only the trunk");
    // One of two has passed: that is not enough. Neither is a pass of another row.
    let told = [credits(&chain, 0, 0, 1), credits(&chain, 0, 1, 2)].concat();
    chain.finish_round_with(told);
    chain.finish_round();
    assert_eq!(steps(&chain), [3, 0, 1], "row 1, by the round after the one that has sealed its credits");
    let view = chain.ledger.round(Round(2)).unwrap();
    assert_eq!(view.row_steps(), [RowStep { row: Row(1), round: Round(0) }]);
    assert!(
        chain.ledger.was_applied(Round(0), ShardId(2)) && !chain.ledger.was_applied(Round(0), ShardId(1))
    );
    assert!(chain.ledger.was_applied(Round(1), ShardId::TRUNK));
}

#[test]
fn row_5_nobody_s_update_is_applied_who_was_banned_since() {
    // Its author; the verifier that has passed it; whoever has reduced it.
    let author = |chain: &Chain| credits(chain, 0, 0, 1)[0].member;
    let vouches = |_: &Chain| verifier(0).id();
    let reduced = |chain: &Chain| chain.ledger.round(Round(0)).unwrap().signers_in(Row(0)).next().unwrap();
    let ripe = |chain: &Chain| is_ripe(&chain.ledger.roster, &chain.ledger.rounds, Round(0), Row(0));
    let culprits: [&dyn Fn(&Chain) -> MemberId; 3] = [&author, &vouches, &reduced];
    for (number, culprit) in culprits.iter().enumerate() {
        let mut chain = begun();
        chain.finish_round();
        chain.finish_round_with(credits(&chain, 0, 0, 2));
        let culprit = culprit(&chain);
        let mut banned = chain.clone();
        ban(&mut banned, culprit, 0);
        assert!(ripe(&chain) && !ripe(&banned), "{number}");
    }
}

#[test]
fn row_6_an_update_waits_for_lag_rounds_and_is_left_out_then() {
    let passes = |late: u32| {
        let mut chain = begun();
        chain.finish_round();
        (0..late).for_each(|_| chain.finish_round());
        let told = credits(&chain, 0, 0, 2);
        chain.finish_round_with(told);
        chain.finish_round();
        steps(&chain)[1]
    };
    assert_eq!([0, 1, 2].map(passes), [1, 1, 0], "with a lag of 3 the Outcome of round 3 is the last one");
}

#[test]
fn row_6_a_row_takes_one_step_in_a_round_and_the_oldest_first() {
    let mut chain = begun();
    chain.finish_round();
    chain.finish_round();
    let told = [credits(&chain, 0, 0, 2), credits(&chain, 1, 0, 2)].concat();
    chain.finish_round_with(told);
    for (round, number) in [(0, 1), (1, 2)] {
        chain.finish_round();
        let view = chain.ledger.rounds().rfind(|view| view.results().is_some()).unwrap();
        assert_eq!(view.row_steps(), [RowStep { row: Row(0), round: Round(round) }]);
        assert_eq!(steps(&chain)[1], number);
    }
}

#[test]
fn row_6_the_rows_that_take_a_step_follow_from_the_ledger() {
    let mut chain = begun();
    chain.finish_round();
    chain.finish_round_with(credits(&chain, 0, 0, 2));
    chain.reduce_all();
    let outcome = chain.outcome();
    assert_eq!(*outcome.steps, [RowStep { row: Row(0), round: Round(0) }]);
    let own = RowStep { row: Row(1), round: Round(2) };
    for steps in
        [vec![], vec![own], vec![outcome.steps[0], own], vec![RowStep { row: Row(0), round: Round(1) }]]
    {
        let mut other = outcome.clone();
        other.steps = List::new(steps.clone()).unwrap();
        assert!(chain.refusal(Body::Outcome(other)).is_some(), "{steps:?}");
    }
    assert!(chain.refusal(Body::Outcome(outcome)).is_none());
}

#[test]
fn row_6_what_waits_is_left_out_when_the_state_goes_back() {
    let mut chain = begun();
    chain.finish_round();
    chain.finish_round_with(credits(&chain, 0, 0, 2));
    assert!(chain.ledger.waits(Round(0)) && chain.ledger.waits(Round(1)));
    let culprit = credits(&chain, 1, 1, 1)[0].member;
    let evidence = ban(&mut chain, culprit, 1);
    let state = chain.ledger.state_before(Round(1)).unwrap().clone();
    chain.seal(Body::Rewind(Rewind { to: Round(1), state, evidence }));
    assert_eq!(chain.ledger.stage(), Stage::Gathering);
    assert!(!chain.ledger.waits(Round(0)) && !chain.ledger.waits(Round(1)));
}

#[test]
fn a_row_with_many_contributions_takes_its_step_at_once() {
    let mut chain = Chain::begin_with(two_by_two(|mixture| (mixture.few, mixture.held) = (2, 1)));
    chain.finish_round();
    assert_eq!(steps(&chain), [1, 1, 1]);
    assert!(!chain.ledger.waits(Round(0)));
    let view = chain.ledger.round(Round(0)).unwrap();
    assert!(view.commitments().all(|(slot, _)| !view.is_held(view.row_of(slot))));
    assert_eq!(view.slot_of(&node(0).id()).map(|slot| slot < Slot(4)), Some(true));
}

#[test]
fn row_6_a_step_that_has_not_waited_leaves_out_what_waits() {
    let mut chain = begun();
    chain.finish_round();
    assert!(chain.ledger.waits(Round(0)));
    // The row is held no longer: as if more had been frozen in it.
    let mut manifest = Manifest::clone(chain.ledger.manifest());
    if let Family::Mixture(mixture) = &mut manifest.model.family {
        mixture.held = 1;
    }
    chain.ledger.rows.terms = Terms::of(manifest.into());
    chain.finish_round_with(credits(&chain, 0, 0, 2));
    assert_eq!(steps(&chain), [2, 1, 1], "by the results of this round, and not by those that are ripe");
    assert!(!chain.ledger.waits(Round(0)) && !chain.ledger.waits(Round(1)));
    chain.finish_round();
    assert_eq!(steps(&chain), [3, 2, 2]);
    assert!(!chain.ledger.was_applied(Round(0), ShardId(1)));
}
