//! Who inspects which contributions and blocks, and what a verdict is credited for.

use muster_core::ids::{Digest, Round};
use muster_core::ledger::Standing;
use muster_core::messages::enrol::Role;
use muster_core::messages::record::{Body, Credit, Idle};

use crate::chain::{Chain, VERIFIERS, asked, id, on_probation, refused};

#[test]
fn stand_1_a_verdict_is_credited_once_and_only_as_it_can_be() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    chain.invite(30, Role::Node, false);
    chain.round(Vec::new());
    chain.round(Vec::new());
    let good = chain.drawn(30, VERIFIERS[0]);
    let open = chain.ledger.next_round();
    chain.freeze();
    chain.inputs(&[]).expect("inputs");
    let mut refuse = |credits: Vec<Credit>, words| refused(chain.outcome(&[10, 11], credits), words);
    refuse(vec![good.clone(), good.clone()], "vouches once");
    let renamed = Credit { verdict: Digest([9; 32]), ..good.clone() };
    refuse(vec![good.clone(), renamed.clone()], "vouches once");
    refuse(vec![Credit { leaves: 16, ..good.clone() }], "that were drawn");
    refuse(vec![Credit { verifier: id(10), ..good.clone() }], "a verifier vouches");
    refuse(vec![Credit { verifier: id(30), ..good.clone() }], "a verifier vouches");
    refuse(vec![Credit { verifier: id(99), ..good.clone() }], "a verifier vouches");
    // STAND-1: a verifier vouches for what was drawn to it, and for nothing else.
    refuse(vec![Credit { verifier: id(VERIFIERS[1]), ..good.clone() }], "the inspector of a contribution");
    refuse(vec![Credit { member: id(99), ..good.clone() }], "only a frozen contribution");
    refuse(vec![Credit { round: open, ..good.clone() }], "when it is over");
    refuse(vec![Credit { round: Round(77), ..good.clone() }], "not remembered");
    // Before it came.
    refuse(vec![Credit { round: Round(0), ..good.clone() }], "only a frozen contribution");
    assert_eq!(chain.ledger.credit(chain.member(30)), 0, "a refused record changes nothing");
    chain.outcome(&[10, 11], vec![good.clone()]).expect("an outcome");
    assert_eq!(chain.ledger.credit(chain.member(30)), 2);
    chain.freeze();
    chain.inputs(&[]).expect("inputs");
    refused(chain.outcome(&[10, 11], vec![renamed]), "vouches once");
    chain.ban(VERIFIERS[1]);
    let late = Credit { verifier: id(VERIFIERS[1]), ..good };
    refused(chain.outcome(&[10, 11], vec![late]), "a verifier vouches");
}

#[test]
fn duty_5_only_a_verifier_with_a_duty_in_a_finished_round_is_idle() {
    let mut chain = asked();
    let idle = |who: u8, round: u32| Body::Idle(Idle { verifier: id(who), round: Round(round) });
    chain.seal(idle(10, 0)).expect_err("a node has no duty");
    chain.seal(idle(VERIFIERS[0], 1)).expect_err("the round is open");
    chain.seal(idle(VERIFIERS[0], 0)).expect("the round is over and echoed");
    assert_eq!(
        (chain.member(VERIFIERS[0]).standing, chain.member(VERIFIERS[0]).failures),
        (Standing::Away, 1)
    );
    chain.seal(idle(VERIFIERS[0], 0)).expect_err("it is away already");
    chain.round(Vec::new());
    let inspectors =
        |chain: &Chain, round: u32| chain.ledger.round(Round(round)).expect("kept").inspectors().to_vec();
    assert_eq!(inspectors(&chain, 1), [id(VERIFIERS[1])], "frozen before it returned");
    chain.come_back(VERIFIERS[0]).expect("it may return at once");
    chain.round(Vec::new());
    assert_eq!(inspectors(&chain, 2), VERIFIERS.map(id));
}

#[test]
fn audit_20_blocks_are_shared_by_the_verifiers_of_the_round_that_are_left() {
    let mut chain = asked();
    let verifiers = VERIFIERS.map(id);
    chain.freeze();
    // Away and back between Freeze and Outcome: active when the round ends, and none of its verifiers any more.
    chain.seal(Body::Idle(Idle { verifier: verifiers[1], round: Round(0) })).expect("it had a duty");
    chain.come_back(VERIFIERS[1]).expect("it may return at once");
    chain.inputs(&[]).expect("inputs");
    chain.outcome(&[10, 11], Vec::new()).expect("an outcome");
    assert_eq!(chain.member(VERIFIERS[1]).standing, Standing::Active);
    let shared = |chain: &Chain, round: u32| {
        let view = chain.ledger.round(Round(round)).expect("kept");
        (view.block_inspectors().to_vec(), view.inspectors().to_vec())
    };
    assert_eq!(shared(&chain, 1), (vec![verifiers[0]], vec![verifiers[0]]));
    chain.round(Vec::new());
    assert_eq!(shared(&chain, 2), (verifiers.to_vec(), verifiers.to_vec()));
    // Who goes when the round is over leaves its contributions to others, and its blocks to nobody.
    chain.ban(VERIFIERS[1]);
    assert_eq!(shared(&chain, 2), (verifiers.to_vec(), vec![verifiers[0]]));
}
