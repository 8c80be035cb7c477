use muster_core::coins::CoinTree;
use muster_core::ledger::fixture::{Makers, Newcomer, commitment};
use muster_core::messages::evidence::Equivocation;
use muster_core::messages::round::Commit;
use muster_core::sign::Signed;

use super::audits::Honest;
use super::coins::{Notes, Unwritten};
use super::*;

const NODES: [u8; 2] = [11, 12];
const VERIFIER: u8 = 21;

fn member(number: u8) -> Identity {
    Identity::from_secret(&[number; 32])
}

fn coins() -> CoinTree {
    CoinTree::new([7; 32], Round(0), 8, 2).unwrap()
}

/// A ledger in its first round, with two nodes and a verifier.
fn begun() -> Ledger {
    let (makers, [one, other], verifier) = (Makers::of(1, 2), NODES.map(member), member(VERIFIER));
    let verifier = Newcomer::verifier(&verifier, coins().terms());
    makers.begin(makers.tiny(4, 2), [Newcomer::node(&one), Newcomer::node(&other), verifier])
}

/// What the first node commits to.
fn commits(ledger: &Ledger, root: u8) -> Commit {
    commitment(ledger, &member(NODES[0]), 0, Digest([root; 32]))
}

/// A node that committed twice.
fn equivocation(ledger: &Ledger) -> Evidence {
    let commit = |root| -> Signed<Commit> { member(NODES[0]).sign(ledger.run(), &commits(ledger, root)) };
    Evidence::Equivocation(Equivocation { first: commit(1), second: commit(2) })
}

struct Forgetful;

impl Notes for Forgetful {
    fn stands(&self, _: &str, _: Round, _: &Digest) -> Result<bool, Unwritten> {
        Ok(true)
    }
}

fn machine(ledger: &Ledger, number: u8, accusations: Vec<Evidence>) -> Verifier {
    Verifier::new(VerifierSetup {
        ledger,
        manifest: ledger.manifest().clone(),
        identity: Arc::new(member(number)),
        coins: Coins::new(coins(), Arc::new(Forgetful)),
        conduct: Arc::new(Honest),
        silences: Vec::new(),
        accusations,
        kept: BTreeSet::new(),
    })
}

fn news(ledger: &Ledger, whole: bool) -> VerifierInput<'_> {
    VerifierInput::News(LedgerUpdate { ledger, events: &[], whole, in_step: true, board: 1 })
}

fn told(machine: &mut Verifier) -> Option<Box<Message>> {
    match machine.poll_effect() {
        Some(VerifierEffect::Tell(message)) => Some(message),
        Some(_) => panic!("something else is to be done"),
        None => None,
    }
}

#[test]
fn who_is_no_member_halts() {
    let ledger = begun();
    let mut machine = machine(&ledger, 33, Vec::new());
    machine.handle(0, news(&ledger, false));
    assert!(machine.poll_effect().is_none(), "it may be admitted by what is still to be read");
    machine.handle(0, news(&ledger, true));
    assert!(matches!(machine.poll_effect(), Some(VerifierEffect::Halt(HaltCause::Stranger))));
    machine.handle(1, news(&ledger, true));
    assert!(machine.poll_effect().is_none());
}

#[test]
fn an_accusation_is_repeated_until_a_ban() {
    let ledger = begun();
    let mut machine = machine(&ledger, VERIFIER, vec![equivocation(&ledger)]);
    machine.handle(0, news(&ledger, false));
    assert!(told(&mut machine).is_none(), "nothing is said before the board was read");
    machine.handle(0, news(&ledger, true));
    let message = told(&mut machine).unwrap();
    assert!(matches!(*message, Message::Accuse(_)));
    assert!(told(&mut machine).is_none(), "one after the other");
    machine.handle(5, VerifierInput::Told(message, Answer::Unreached));
    assert!(told(&mut machine).is_none());
    assert_eq!(machine.poll_timeout(), Some(5 + PAUSE));
    machine.handle(5 + PAUSE, VerifierInput::Tick);
    let message = told(&mut machine).unwrap();
    machine.handle(5 + PAUSE, VerifierInput::Told(message, Answer::Taken));
    assert!(told(&mut machine).is_none());
    assert_eq!(machine.poll_timeout(), Some(REMINDER));
    machine.handle(REMINDER, VerifierInput::Tick);
    assert!(told(&mut machine).is_some());
}

#[test]
fn it_stops_once_it_has_said_what_it_has_to_say() {
    let ledger = begun();
    let mut machine = machine(&ledger, VERIFIER, vec![equivocation(&ledger)]);
    machine.handle(0, news(&ledger, true));
    let message = told(&mut machine).unwrap();
    machine.handle(1, VerifierInput::Stop);
    assert!(machine.poll_effect().is_none());
    machine.handle(2, VerifierInput::Told(message, Answer::Taken));
    assert!(matches!(machine.poll_effect(), Some(VerifierEffect::End)));
    assert!(machine.poll_effect().is_none() && machine.poll_timeout().is_none());
}

#[test]
fn what_lacks_its_state_by_now_waits_and_is_not_over() {
    let ledger = begun();
    let mut machine = machine(&ledger, VERIFIER, Vec::new());
    let commit = commits(&ledger, 1);
    machine.handle(0, VerifierInput::States(BTreeSet::from([commit.state])));
    let record = member(2).sign(ledger.run(), &ledger.record(Body::Close(Digest::default())));
    let (freeze, author) = (Digest::default(), member(NODES[0]).id());
    let subject = Arc::new(Subject { record, freeze, commit, author, sources: Vec::new() });
    machine.computing = Some(subject.key());
    let work = Box::new(Work { subject, kind: WorkKind::Everything });
    machine.handle(1, VerifierInput::Lacking(work, BTreeSet::new()));
    assert!(machine.computing.is_none() && machine.stirred, "it goes on with something else");
    assert!(machine.states.is_empty(), "and offers nothing more on that state");
    assert_eq!(machine.tally().undecided, 0);
}
