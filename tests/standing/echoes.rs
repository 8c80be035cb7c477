//! Whose echoes a round needs before its deliveries, its Outcome and its audits.

use muster_core::codec::List;
use muster_core::ids::Slot;
use muster_core::ledger::Standing;
use muster_core::messages::record::Body;
use muster_core::messages::round::{Delivered, Echo};
use muster_core::round::{Conductor, Output};

use crate::chain::{four, id, person, refused};

#[test]
fn ledger_10_an_outcome_holds_the_echo_of_whoever_counts() {
    let mut chain = four();
    chain.freeze();
    chain.inputs(&[0, 1, 2, 3].map(Slot)).expect("inputs");
    refused(chain.outcome(&[10, 11, 12], Vec::new()), "the echo of every slot");
    chain.outcome(&[10, 11, 12, 13], Vec::new()).expect("an outcome");
    assert!(chain.last_is_echoed());
    // Half of the weight is silent: it counts nowhere, and fails by that; the others are audited.
    let mut chain = four();
    chain.freeze();
    chain.inputs(&[0, 1].map(Slot)).expect("inputs");
    for who in 10..14 {
        let silent = who >= 12;
        assert_eq!(chain.member(who).standing == Standing::Away, silent, "{who}");
        assert_eq!(chain.member(who).failures, u8::from(silent), "{who}");
    }
    chain.outcome(&[10, 11], Vec::new()).expect("an outcome");
    assert!(chain.last_is_echoed());
}

#[test]
fn audit_1_a_round_that_counts_nobody_takes_two_thirds_of_the_echoes() {
    let mut chain = four();
    for (echoes, echoed) in [(&[10, 11, 12][..], true), (&[10, 11], false)] {
        chain.freeze();
        chain.inputs(&[]).expect("inputs");
        chain.outcome(echoes, Vec::new()).expect("an outcome");
        assert_eq!(chain.last_is_echoed(), echoed);
    }
    // Nothing of them counts that could escape an audit.
    assert!((10..14).all(|who| chain.member(who).failures == 0));
}

#[test]
fn round_5_a_delivery_is_taken_after_the_echo_and_the_steward_waits_for_both() {
    let mut chain = four();
    chain.freeze();
    let run = chain.run();
    let patience = u64::from(chain.ledger.manifest().timers.part);
    let view = chain.ledger.current().expect("a round").clone();
    let echo = Echo { round: view.round(), freeze: view.freeze_digest().expect("frozen") };
    let delivered = |who: u8, conductor: &mut Conductor| {
        let said = Delivered { round: view.round(), attempt: 0, receipts: List::default() };
        conductor.delivered(10, &person(who).sign(run, &said))
    };
    let mut conductor = Conductor::new(chain.ledger.clone(), 0);
    (10..14).for_each(|who| conductor.live(0, id(who), true));
    conductor.start();
    for who in 10..13 {
        refused(delivered(who, &mut conductor), "echo the freeze first");
        assert_eq!(conductor.echo(5, person(who).sign(run, &echo)), Ok(true));
        delivered(who, &mut conductor).expect("a delivery");
    }
    // Three quarters have echoed and delivered. The last one could not count yet.
    assert_eq!(conductor.poll_output(), None);
    conductor.tick(patience);
    assert!(matches!(conductor.poll_output(), Some(Output::Seal(Body::Inputs(_)))));
}
