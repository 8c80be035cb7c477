//! When the conductor begins rounds, and when it holds them back.

use muster_core::codec::{List, Text};
use muster_core::ids::Round;
use muster_core::ledger::Stage;
use muster_core::manifest::Admission;
use muster_core::messages::enrol::{Engagement, Return, Role};
use muster_core::messages::record::{Body, Idle};
use muster_core::messages::round::Echo;
use muster_core::round::{Awaited, Conductor, Output};

use crate::chain::{
    Chain, ORGANISER, STEWARD, VERIFIERS, commits, four, id, invitation, on_probation, person, roots,
};

#[test]
fn ledger_6_the_first_one_back_has_no_round_for_itself() {
    let mut chain = four();
    chain.round_reduced_by(&[]);
    assert_eq!(chain.ledger.stage(), Stage::Gathering, "all have failed at one outcome");
    let patience = u64::from(chain.ledger.manifest().timers.commit);
    let begun = |chain: &Chain, now: u64| {
        let mut conductor = Conductor::new(chain.ledger.clone(), 0);
        (10..14).for_each(|who| conductor.live(0, id(who), true));
        conductor.start();
        conductor.cases(now, None);
        conductor.poll_output().map(|output| match output {
            Output::Seal(Body::Begin(seats)) => seats.len(),
            output => panic!("{output:?}"),
        })
    };
    assert_eq!(begun(&chain, 2 * patience), None, "nobody is active");
    chain.come_back(11).expect("it may return");
    assert_eq!(begun(&chain, patience - 1), None, "the others are there");
    assert_eq!(begun(&chain, patience), Some(1), "and do not return");
    [10, 12, 13].into_iter().for_each(|who| chain.come_back(who).expect("it may return"));
    assert_eq!(begun(&chain, 1), Some(4));
}

#[test]
fn a_run_begins_without_who_came_and_went_away() {
    let mut chain = Chain::new(Admission::closed(2, 0, 64));
    (10..13).for_each(|who| chain.invite(who, Role::Node, true));
    let patience = u64::from(chain.ledger.manifest().timers.commit);
    let mut conductor = Conductor::new(chain.ledger.clone(), 0);
    conductor.start();
    conductor.cases(0, None);
    conductor.live(1_000, id(10), true);
    conductor.tick(1_000 + 2 * patience);
    assert_eq!(conductor.poll_output(), None, "one of two that it begins with");
    conductor.live(2_000, id(12), true);
    assert!(matches!(conductor.poll_output(), Some(Output::Seal(Body::Begin(seats))) if seats.len() == 3));
}

/// ROUND-16: [`Conductor::start`] says that everything receipted has been taken in again.
#[test]
fn nothing_is_sealed_before_what_was_promised_is_taken_again() {
    let mut chain = Chain::new(Admission::closed(2, 0, 64));
    (10..12).for_each(|who| chain.invite(who, Role::Node, true));
    let mut conductor = Conductor::new(chain.ledger.clone(), 0);
    conductor.cases(0, None);
    (10..12).for_each(|who| conductor.live(0, id(who), true));
    assert_eq!(conductor.poll_output(), None);
    conductor.start();
    assert!(matches!(conductor.poll_output(), Some(Output::Seal(Body::Begin(_)))));
}

#[test]
fn round_26_a_pause_grows_and_ends_when_somebody_comes_or_moves() {
    let mut run = Spending::begin();
    let part = u64::from(run.conductor.ledger().manifest().timers.part);
    let pauses = [0, 0, 0, part, 2 * part, 4 * part];
    assert_eq!(pauses.map(|_| run.round()), pauses);
    // A member that connects again.
    run.conductor.live(run.now, id(10), false);
    run.conductor.live(run.now, id(10), true);
    assert_eq!([0, 0, 0, part].map(|_| run.round()), [0, 0, 0, part]);
    // One that has moved.
    let ledger = run.conductor.ledger();
    let addresses = List::new(vec![Text::new("sim:elsewhere").expect("short")]).expect("one");
    let moved = person(11)
        .sign(ledger.run(), &Return { height: ledger.height(), addresses, engagement: Default::default() });
    run.conductor.propose(Body::Return(moved));
    run.act();
    assert_eq!(run.round(), 0);
    // It never waits longer than an hour.
    for _ in 0..20 {
        run.round();
    }
    assert_eq!(run.round(), 3_600_000);
}

#[test]
fn round_26_a_pause_ends_with_a_newcomer_and_after_a_time_in_which_nobody_was_heard() {
    let chain = Chain::new(Admission::closed(2, 0, 64));
    let inviting = invitation(ORGANISER, Role::Node, true, 12);
    let newcomer = chain.enrol(12, Some(chain.presented(12, &inviting, ORGANISER)));
    let mut run = Spending::begin();
    let part = u64::from(run.conductor.ledger().manifest().timers.part);
    assert_eq!([(); 4].map(|()| run.round()), [0, 0, 0, part]);
    run.conductor.propose(Body::Admit(newcomer));
    run.act();
    assert_eq!([(); 4].map(|()| run.round()), [0, 0, 0, part], "it may be what was lacking");
    run.conductor.resume(run.now);
    assert_eq!(run.round(), 0, "whoever came meanwhile was not heard");
}

#[test]
fn round_33_a_verifier_that_sits_out_rounds_has_them_go_by() {
    let mut chain = Chain::new(Admission::closed(2, 1, 64));
    (10..12).for_each(|who| chain.invite(who, Role::Node, true));
    VERIFIERS.into_iter().for_each(|who| chain.invite(who, Role::Verifier, false));
    chain.start();
    chain.round(Vec::new());
    let [one, _] = VERIFIERS;
    let idle = |chain: &mut Chain| {
        let round = Round(chain.ledger.next_round().0 - 1);
        chain.seal(Body::Idle(Idle { verifier: id(one), round })).expect("it had a duty");
    };
    idle(&mut chain);
    chain.come_back(one).expect("one failure bars nobody");
    chain.round(Vec::new());
    idle(&mut chain);
    assert!(chain.ledger.sits_out(chain.member(one)), "the other one is active");
    let mut waiting = Waiting::begin(chain, &[10, 11, one]);
    waiting.freezes("the other one is not there, and this one can be once rounds go by");
}

#[test]
fn round_33_a_run_that_began_with_verifiers_spends_no_round_without_one() {
    let mut chain = Chain::new(Admission::closed(2, 1, 64));
    (10..12).for_each(|who| chain.invite(who, Role::Node, true));
    VERIFIERS.into_iter().for_each(|who| chain.invite(who, Role::Verifier, false));
    let mut waiting = Waiting::begin(chain, &[10, 11, VERIFIERS[0]]);
    waiting.freezes("a verifier is there");
    waiting.lose(VERIFIERS[0]);
    waiting.next_round();
    assert_eq!(waiting.holds(), Some(Awaited::Verifier));
    waiting.conductor.live(waiting.now, id(VERIFIERS[1]), true);
    waiting.freezes("another one has come");
}

#[test]
fn round_33_a_run_that_waits_for_no_verifier_goes_on_without_one() {
    let mut chain = Chain::new(Admission::closed(2, 0, 64));
    (10..12).for_each(|who| chain.invite(who, Role::Node, true));
    let mut waiting = Waiting::begin(chain, &[10, 11]);
    waiting.freezes("the manifest waits for none");
}

#[test]
fn round_32_rounds_wait_until_somebody_has_weight_or_can_earn_it() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    chain.invite(30, Role::Node, false);
    chain.round(Vec::new());
    chain.earn(30, 1);
    // One verifier has vouched for its whole share: what it passes from now on ends no probation.
    for _ in 0..2 {
        let credit = chain.drawn(30, VERIFIERS[0]);
        chain.round(vec![credit]);
    }
    assert!(!chain.ledger.weighs(chain.member(30)));
    let mut waiting = Waiting::begin(chain, &[30, VERIFIERS[0]]);
    assert_eq!(waiting.holds(), Some(Awaited::Weight));
    waiting.conductor.live(waiting.now, id(VERIFIERS[1]), true);
    waiting.freezes("the other verifier can end the probation");
    waiting.lose(VERIFIERS[1]);
    waiting.next_round();
    assert_eq!(waiting.holds(), Some(Awaited::Weight));
    waiting.conductor.live(waiting.now, id(10), true);
    waiting.freezes("a founder is back");
}

/// They keep their seats, and owe the round (LEDGER-24).
#[test]
fn round_32_founders_that_rest_after_the_round_end_it() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    for founder in 10..12 {
        chain.engage(founder, Engagement::Rests).expect("once a round");
    }
    let mut waiting = Waiting::begin(chain, &[10, 11, VERIFIERS[0]]);
    waiting.freezes("both have committed");
}

#[test]
fn rollback_5_a_past_that_is_measured_holds_the_round_until_it_is() {
    let mut chain = Chain::new(Admission::closed(2, 0, 64));
    (10..12).for_each(|who| chain.invite(who, Role::Node, true));
    let mut waiting = Waiting::opened(chain, &[10, 11]);
    waiting.conductor.measuring(0, Some(id(11)));
    waiting.commit();
    assert_eq!(waiting.holds(), Some(Awaited::Past(id(11))));
    waiting.conductor.measuring(waiting.now, None);
    waiting.freezes("it is measured");
}

/// A steward in a round that everybody who is there has committed to.
struct Waiting {
    conductor: Conductor,
    now: u64,
}

impl Waiting {
    fn begin(chain: Chain, there: &[u8]) -> Self {
        let mut waiting = Self::opened(chain, there);
        waiting.commit();
        waiting
    }

    fn opened(chain: Chain, there: &[u8]) -> Self {
        let mut waiting = Self { conductor: Conductor::new(chain.ledger, 0), now: 0 };
        there.iter().for_each(|who| waiting.conductor.live(0, id(*who), true));
        waiting.conductor.start();
        waiting.conductor.cases(0, None);
        if waiting.conductor.ledger().stage() == Stage::Gathering {
            waiting.seal();
        }
        waiting
    }

    fn commit(&mut self) {
        assert_eq!(self.conductor.ledger().stage(), Stage::Computing);
        for commit in commits(self.conductor.ledger()) {
            self.conductor.commit(self.now, commit).expect("a good commitment");
        }
        // Whoever is not there has its timer.
        self.now += 3_600_000;
        self.conductor.tick(self.now);
    }

    /// Seals what it asks for.
    fn seal(&mut self) {
        let Some(Output::Seal(body)) = self.conductor.poll_output() else { panic!("it asks for a record") };
        self.sealed(body);
    }

    fn sealed(&mut self, body: Body) {
        let ledger = self.conductor.ledger();
        let signed = person(STEWARD).sign(ledger.run(), &ledger.record(body));
        self.conductor.sealed(self.now, &signed).expect("a good record");
        self.conductor.cases(self.now, None);
    }

    fn lose(&mut self, who: u8) {
        self.conductor.live(self.now, id(who), false);
    }

    /// What it waits for, however much time passes.
    fn holds(&mut self) -> Option<Awaited> {
        self.now += 24 * 3_600_000;
        self.conductor.tick(self.now);
        assert_eq!(self.conductor.poll_output(), None);
        self.conductor.awaits()
    }

    fn freezes(&mut self, why: &str) {
        assert_eq!(self.conductor.awaits(), None, "{why}");
        self.conductor.tick(self.now);
        self.seal();
        assert_eq!(self.conductor.ledger().stage(), Stage::Exchanging, "{why}");
    }

    /// Ends the frozen round, which everybody echoes, and has everybody commit to the next one.
    fn next_round(&mut self) {
        let view = self.conductor.ledger().current().expect("a round").clone();
        let (round, freeze) = (view.round(), view.freeze_digest().expect("frozen"));
        for who in (0..=u8::MAX).filter(|who| view.slot_of(&id(*who)).is_some()) {
            let echo = person(who).sign(self.conductor.ledger().run(), &Echo { round, freeze });
            self.conductor.echo(self.now, echo).expect("a good echo");
        }
        while self.conductor.ledger().next_round() == round {
            self.now += 3_600_000;
            self.conductor.tick(self.now);
            match self.conductor.poll_output() {
                Some(Output::Apply(_)) => {
                    let next = roots(self.conductor.ledger().state().step() + 1);
                    self.conductor.applied(self.now, Ok(next));
                }
                Some(Output::Seal(body)) => self.sealed(body),
                other => assert_eq!(other, None),
            }
        }
        self.commit();
    }
}

/// A steward whose members commit, and never get anything to each other.
struct Spending {
    conductor: Conductor,
    now: u64,
}

impl Spending {
    fn begin() -> Self {
        let mut chain = Chain::new(Admission::closed(2, 0, 64));
        (10..12).for_each(|who| chain.invite(who, Role::Node, true));
        let mut spending = Self { conductor: Conductor::new(chain.ledger, 0), now: 0 };
        (10..12).for_each(|who| spending.conductor.live(0, id(who), true));
        spending.conductor.start();
        spending.act();
        spending
    }

    /// Does what the conductor asks for.
    fn act(&mut self) {
        while let Some(output) = self.next() {
            let ledger = self.conductor.ledger();
            let next = roots(ledger.state().step() + 1);
            match output {
                Output::Seal(body) => {
                    let signed = person(STEWARD).sign(ledger.run(), &ledger.record(body));
                    self.conductor.sealed(self.now, &signed).expect("a good record");
                }
                Output::Apply(_) => self.conductor.applied(self.now, Ok(next)),
                Output::Inspect(_) => panic!("nothing was reduced"),
            }
        }
    }

    /// What it asks for, where no audit is open.
    fn next(&mut self) -> Option<Output> {
        self.conductor.cases(self.now, None);
        self.conductor.poll_output()
    }

    /// Has everybody commit, and says how long it takes until that is frozen; then spends the round.
    fn round(&mut self) -> u64 {
        let begun = self.now;
        for commit in commits(self.conductor.ledger()) {
            self.conductor.commit(self.now, commit).expect("a good commitment");
        }
        self.act();
        while self.conductor.ledger().stage() == Stage::Computing {
            self.wait();
        }
        let frozen = self.now - begun;
        let view = self.conductor.ledger().current().expect("a round").clone();
        let round = view.round();
        let echo = Echo { round, freeze: view.freeze_digest().expect("frozen") };
        for who in [10, 11] {
            let echo = person(who).sign(self.conductor.ledger().run(), &echo);
            self.conductor.echo(self.now, echo).expect("a good echo");
        }
        while self.conductor.ledger().next_round() == round {
            self.wait();
        }
        assert!(self.conductor.ledger().round(round).expect("it is kept").is_barren());
        frozen
    }

    fn wait(&mut self) {
        assert_ne!(self.conductor.ledger().stage(), Stage::Gathering, "nobody fails");
        self.now = self.conductor.poll_timeout().expect("it waits for something");
        self.conductor.tick(self.now);
        self.act();
    }
}
