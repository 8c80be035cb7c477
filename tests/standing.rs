//! What newcomers weigh, who brings whom in, and what many keys of one person get: by the ledger's rules, in virtual
//! time, and as real processes.

use std::sync::Arc;

use e2e::oracle;
use e2e::processes::{Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use e2e::sim::{Behaviour, Plan, Sim};
use muster_core::codec::{List, Text, decode, encode};
use muster_core::coins::{CoinKind, CoinTree};
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Part, Round, RunId, Slot};
use muster_core::ledger::{Closed, Ledger, Member, Stage, Standing};
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{Admission, Listed, Mode};
use muster_core::messages::audit::{AuditRequest, FindingKind, Jury};
use muster_core::messages::enrol::{
    Addresses, CloseTree, Enrol, Invitation, InvitationSecret, Leave, Possession, Presented, Return, Role,
    Ticket,
};
use muster_core::messages::record::{Ban, Body, Credit, Freeze, Idle, Inputs, Outcome};
use muster_core::messages::round::{Bitmap, Commit, Delivered, Echo, PartResult};
use muster_core::round::{Conductor, Output};
use muster_core::sign::{Identity, Signed};
use muster_core::state::StateRoots;
use muster_replica::archive::Archive;

const ORGANISER: u8 = 1;
const STEWARD: u8 = 2;
const VERIFIERS: [u8; 2] = [200, 201];

fn person(number: u8) -> Identity {
    Identity::from_secret(&[number; 32])
}

fn id(number: u8) -> MemberId {
    person(number).id()
}

fn roots(step: u32) -> StateRoots {
    let digest = Digest([step as u8; 32]);
    StateRoots {
        step,
        beta_powers: [0; 2],
        exponents: digest,
        parameters: digest,
        first: digest,
        second: digest,
    }
}

fn invitation(by: u8, role: Role, founder: bool, nonce: u8) -> Invitation {
    Invitation { role, uses: 9, expires: u64::MAX, key: secret(by ^ nonce).key(), founder }
}

fn secret(number: u8) -> InvitationSecret {
    let mut secret = [number; 32];
    secret[0] = !number;
    InvitationSecret::new(secret)
}

/// The secret of an invitation that [`invitation`] made.
fn secret_of(invitation: &Invitation) -> InvitationSecret {
    let mut secrets = (0..=u8::MAX).map(secret);
    secrets.find(|secret| secret.key() == invitation.key).expect("it was made here")
}

/// On probation for eight leaves, two of each contribution being drawn.
fn on_probation() -> Admission {
    Admission { probation: 8, vouchers: 2, ..Admission::closed(2, 0, 64) }
}

/// What everybody who is seated in the open round commits to.
fn commits(ledger: &Ledger) -> Vec<Signed<Commit>> {
    let view = ledger.current().expect("a round");
    let people = 0..=u8::MAX;
    let named = |member: MemberId| people.clone().find(|number| id(*number) == member).expect("a person");
    let commits = view.seats().iter().zip(0..).map(|(seat, slot)| {
        let commit = Commit {
            round: view.round(),
            head: view.head(),
            state: view.state().root(),
            slot: Slot(slot),
            seats: view.seats().len() as u16,
            leaves: seat.quota,
            profile: ledger.manifest().profile,
            loss: 1,
            root: Digest([slot as u8; 32]),
        };
        person(named(seat.member)).sign(ledger.run(), &commit)
    });
    commits.collect()
}

/// A ledger and whoever says what it holds; nothing is computed.
struct Chain {
    ledger: Ledger,
}

impl Chain {
    fn new(admission: Admission) -> Self {
        Self::of(60, admission)
    }

    fn of(rounds: u32, admission: Admission) -> Self {
        let mut manifest = tiny(id(ORGANISER), id(STEWARD), rounds, 2);
        manifest.training.leaves = 32;
        manifest.audit.leaves = 2;
        manifest.audit.share_ppm = 100_000;
        manifest.admission = admission;
        manifest.check().expect("a good manifest");
        let mut chain = Self { ledger: Ledger::new(Arc::new(manifest)) };
        chain.seal(Body::Open(roots(0))).expect("an opening");
        chain
    }

    fn run(&self) -> RunId {
        self.ledger.run()
    }

    fn seal(&mut self, body: Body) -> Result<(), Reject> {
        let signed = person(STEWARD).sign(self.run(), &self.ledger.record(body));
        self.ledger.apply(&signed).map(drop)
    }

    fn coins(verifier: u8) -> CoinTree {
        CoinTree::new([verifier; 32], Round(0), 64, 8).expect("few coins")
    }

    /// An invitation by somebody, as its holder presents it.
    fn presented(&self, who: u8, invitation: &Invitation, by: u8) -> Presented {
        let signed = person(by).sign(self.run(), invitation);
        secret_of(invitation).present(self.run(), signed, id(who))
    }

    fn enrol(&self, who: u8, invitation: Option<Presented>) -> Signed<Enrol> {
        let address = Text::new(format!("sim:{who}")).expect("short");
        let coins = VERIFIERS.contains(&who).then(|| Self::coins(who).terms());
        let addresses = List::new(vec![address]).expect("one");
        person(who).sign(self.run(), &Enrol { invitation, addresses, coins })
    }

    fn admit(&mut self, who: u8, invitation: Option<Invitation>, by: u8) -> Result<(), Reject> {
        let invitation = invitation.map(|invitation| self.presented(who, &invitation, by));
        let enrol = self.enrol(who, invitation);
        self.seal(Body::Admit(enrol))
    }

    /// By the organiser.
    fn invite(&mut self, who: u8, role: Role, founder: bool) {
        self.admit(who, Some(invitation(ORGANISER, role, founder, who)), ORGANISER)
            .expect("a good enrolment");
    }

    /// By a member.
    fn bring(&mut self, who: u8, by: u8) -> Result<(), Reject> {
        self.admit(who, Some(invitation(by, Role::Node, false, who)), by)
    }

    /// Two founders, two verifiers, and a beginning.
    fn begin(&mut self) {
        (10..12).for_each(|who| self.invite(who, Role::Node, true));
        VERIFIERS.into_iter().for_each(|who| self.invite(who, Role::Verifier, false));
        self.start();
    }

    fn start(&mut self) {
        let seats = List::new(self.ledger.derived_seats()).expect("few");
        self.seal(Body::Begin(seats)).expect("a beginning");
    }

    fn member(&self, who: u8) -> &Member {
        self.ledger.member(&id(who)).expect("a member")
    }

    fn freeze(&mut self) {
        let view = self.ledger.current().expect("a round");
        let (round, state) = (view.round(), view.state().root());
        let commits = List::new(commits(&self.ledger)).expect("few");
        self.seal(Body::Freeze(Freeze { round, state, commits })).expect("a freeze");
    }

    fn inputs(&mut self, counted: &[Slot]) -> Result<(), Reject> {
        let view = self.ledger.current().expect("a round");
        let mut bitmap = Bitmap::default();
        counted.iter().for_each(|slot| bitmap.insert(*slot));
        let parts = List::new(vec![bitmap; view.parts().len()]).expect("few");
        let inputs = Inputs { round: view.round(), attempt: 0, parts };
        self.seal(Body::Inputs(inputs))
    }

    fn outcome(&mut self, echoes: &[u8], credits: Vec<Credit>) -> Result<(), Reject> {
        self.seal(Body::Outcome(self.ended(echoes, credits, &[])))
    }

    /// The end of the open round, with the parts of these aggregators.
    fn ended(&self, echoes: &[u8], credits: Vec<Credit>, reducers: &[u8]) -> Outcome {
        let view = self.ledger.current().expect("a round");
        let results = view.inputs().iter().zip(0..).map(|(inputs, part)| {
            let aggregator = view.aggregating(Part(part)).next().expect("an aggregator");
            let reducer = reducers.iter().find(|who| id(**who) == aggregator)?;
            let (round, freeze) = (view.round(), view.freeze_digest().expect("frozen"));
            let digest = Digest([part as u8; 32]);
            let result = PartResult { round, part: Part(part), attempt: 0, freeze, inputs: *inputs, digest };
            Some(person(*reducer).sign(self.run(), &result))
        });
        let echo = Echo { round: view.round(), freeze: view.freeze_digest().expect("frozen") };
        let seated = echoes.iter().filter(|who| view.slot_of(&id(**who)).is_some());
        let mut echoes: Vec<Signed<Echo>> = seated.map(|who| person(*who).sign(self.run(), &echo)).collect();
        echoes.sort_by_key(|echo| view.slot_of(&echo.claimed_signer()));
        let mut outcome = Outcome {
            round: view.round(),
            results: List::new(results.collect()).expect("few"),
            echoes: List::new(echoes).expect("few"),
            state: roots(self.ledger.state().step + 1),
            seats: List::default(),
            credits: List::new(credits).expect("few"),
            seconds: List::default(),
        };
        outcome.seats = List::new(self.ledger.seats_after(&outcome)).expect("few");
        outcome
    }

    /// A round in which everybody counts, and only these aggregators reduce their parts.
    fn round_reduced_by(&mut self, reducers: &[u8]) {
        self.freeze();
        let slots = 0..self.ledger.current().expect("a round").seats().len() as u16;
        self.inputs(&slots.map(Slot).collect::<Vec<_>>()).expect("inputs");
        let everybody: Vec<u8> = (0..=u8::MAX).collect();
        self.seal(Body::Outcome(self.ended(&everybody, Vec::new(), reducers))).expect("an outcome");
    }

    /// A round in which everybody commits and echoes, and nothing is reduced.
    fn round(&mut self, credits: Vec<Credit>) {
        self.freeze();
        self.inputs(&[]).expect("inputs");
        let everybody: Vec<u8> = (0..=u8::MAX).collect();
        self.outcome(&everybody, credits).expect("an outcome");
    }

    /// Credit for the newest finished round.
    fn credit(&self, who: u8, verifier: u8) -> Credit {
        let round = Round(self.ledger.next_round().0 - 1);
        Credit { verdict: Digest([verifier; 32]), round, member: id(who), verifier: id(verifier), leaves: 2 }
    }

    /// Credit for the next round in which this verifier is drawn to inspect the newcomer.
    fn drawn(&mut self, who: u8, verifier: u8) -> Credit {
        loop {
            let view = self.ledger.round(Round(self.ledger.next_round().0 - 1)).expect("kept");
            let inspector = view.slot_of(&id(who)).and_then(|slot| view.inspector(slot));
            if inspector == Some(id(verifier)) {
                return self.credit(who, verifier);
            }
            self.round(Vec::new());
        }
    }

    /// Rounds in which a newcomer earns so many times two leaves from each verifier.
    fn earn(&mut self, who: u8, times: u32) {
        for _ in 0..times {
            for verifier in VERIFIERS {
                let credit = self.drawn(who, verifier);
                self.round(vec![credit]);
            }
        }
    }

    /// An order to close the tree of a member, whoever signs it.
    fn close_tree(&mut self, whose: u8, by: u8) -> Result<(), Reject> {
        let order = person(by).sign(self.run(), &CloseTree { member: id(whose) });
        self.seal(Body::CloseTree(order))
    }

    /// Seals that a member did not answer its inspector about the newest finished round, and gives the request.
    fn silence(&mut self, who: u8) -> Digest {
        let view = self.ledger.round(Round(self.ledger.next_round().0 - 1)).expect("kept");
        let inspector = view.slot_of(&id(who)).and_then(|slot| view.inspector(slot));
        let inspector = VERIFIERS.into_iter().find(|verifier| inspector == Some(id(*verifier)));
        let inspector = inspector.expect("an inspector");
        let request = AuditRequest {
            round: view.round(),
            freeze: view.freeze_digest().expect("frozen"),
            target: id(who),
            coin: Self::coins(inspector).open(CoinKind::Node, view.round(), 0),
        };
        let request = person(inspector).sign(self.run(), &request);
        self.seal(Body::Silence(request.clone())).expect("a silence");
        assert_eq!(self.member(who).standing, Standing::Silent(request.digest()));
        request.digest()
    }

    fn come_back(&mut self, who: u8) -> Result<(), Reject> {
        let addresses = self.member(who).addresses.clone();
        self.move_to(who, addresses)
    }

    fn move_to(&mut self, who: u8, addresses: Addresses) -> Result<(), Reject> {
        let back = Return { height: self.ledger.height(), addresses };
        self.seal(Body::Return(person(who).sign(self.run(), &back)))
    }

    fn ban(&mut self, who: u8) {
        let ban = Ban {
            culprit: id(who),
            effective: self.ledger.first_round_without(),
            round: Round(0),
            finding: FindingKind::LeafMismatch,
            evidence: Digest([1; 32]),
            accuser: id(STEWARD),
            jury: Jury::default(),
        };
        self.seal(Body::Ban(ban)).expect("a ban");
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Reject>, words: &str) {
    let why = result.expect_err(words).to_string();
    assert!(why.contains(words), "{why:?} lacks {words:?}");
}

#[test]
fn a_newcomer_weighs_nothing_however_much_it_commits() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    chain.invite(30, Role::Node, false);
    chain.round(Vec::new());
    chain.freeze();
    let view = chain.ledger.current().expect("a round").clone();
    let slot = view.slot_of(&id(30)).expect("a seat");
    let commitment = view.commitment(slot).expect("a commitment");
    assert_eq!((commitment.commit.leaves, commitment.weight), (16, 0));
    let founder = view.commitment(Slot(0)).expect("a commitment");
    assert_eq!((founder.commit.leaves, founder.weight), (16, 16));
    // STAND-3: it counts in no part, and nobody sends it one.
    assert_eq!(view.aggregators(), [Slot(0), Slot(1)]);
    refused(chain.inputs(&[Slot(0), slot]), "with weight");
    chain.inputs(&[Slot(0), Slot(1)]).expect("inputs");
    // Neither does its echo stand in for that of one that counts.
    refused(chain.outcome(&[10, 30], Vec::new()), "the echo of every slot");
    chain.outcome(&[10, 11], Vec::new()).expect("an outcome");
}

#[test]
fn two_verifiers_end_a_probation_and_one_alone_does_not() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    chain.invite(30, Role::Node, false);
    chain.round(Vec::new());
    // A friend among the verifiers passes it whenever it is drawn.
    chain.round(Vec::new());
    for _ in 0..9 {
        let credit = chain.drawn(30, VERIFIERS[0]);
        chain.round(vec![credit]);
    }
    assert_eq!(chain.ledger.credit(chain.member(30)), 18);
    assert!(!chain.ledger.weighs(chain.member(30)));
    for _ in 0..2 {
        let credit = chain.drawn(30, VERIFIERS[1]);
        chain.round(vec![credit]);
    }
    assert!(chain.ledger.weighs(chain.member(30)));
    chain.freeze();
    let view = chain.ledger.current().expect("a round").clone();
    let slot = view.slot_of(&id(30)).expect("a seat");
    assert_eq!(view.commitment(slot).map(|c| (c.commit.leaves, c.weight)), Some((16, 16)));
    chain.inputs(&[Slot(0), Slot(1), slot]).expect("it counts");
    chain.outcome(&[10, 11, 30], Vec::new()).expect("an outcome");
    assert!(chain.ledger.current().expect("a round").aggregators().contains(&slot));
    // What a convict vouched for is worth nothing.
    chain.ban(VERIFIERS[0]);
    assert!(!chain.ledger.weighs(chain.member(30)));
}

#[test]
fn weight_grows_with_credit_and_the_rate_of_audits_falls_with_it() {
    let mut chain = Chain::new(Admission { newcomer_ppm: 500_000, halving: 4, ..on_probation() });
    chain.begin();
    chain.invite(30, Role::Node, false);
    chain.round(Vec::new());
    let mut seen = Vec::new();
    for _ in 0..4 {
        chain.freeze();
        let view = chain.ledger.current().expect("a round").clone();
        let commitment = view.commitment(view.slot_of(&id(30)).expect("a seat")).expect("a commitment");
        seen.push((commitment.weight, commitment.audit_ppm));
        chain.inputs(&[]).expect("inputs");
        chain.outcome(&[10, 11], Vec::new()).expect("an outcome");
        chain.earn(30, 1);
    }
    // At last it has more credit than leaves: a third of 32.
    assert_eq!(seen, [(0, 500_000), (0, 250_000), (8, 125_000), (10, 100_000)]);
}

#[test]
fn a_verdict_is_credited_once_and_only_as_it_can_be() {
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
fn a_flood_of_keys_gets_a_turn_at_a_time_and_half_the_places() {
    let admission = Admission { mode: Mode::Open, per_round: 3, ..on_probation() };
    let mut chain = Chain::new(Admission { most_members: 16, ..admission });
    chain.begin();
    let mut came: Vec<u8> = Vec::new();
    for who in 100..140 {
        if chain.admit(who, None, who).is_ok() {
            came.push(who);
        } else if came.len().is_multiple_of(3) && came.len() < 8 {
            refused(chain.admit(who, None, who), "enough newcomers");
            chain.round(Vec::new());
        }
    }
    assert_eq!(came.len(), 8, "half of sixteen");
    chain.round(Vec::new());
    refused(chain.admit(150, None, 150), "too many newcomers");
    // Those that the organiser knows still come, and have their seats.
    (12..16).for_each(|who| chain.invite(who, Role::Node, true));
    chain.round(Vec::new());
    let founders: Vec<MemberId> = [10, 11, 12, 13, 14, 15].map(id).to_vec();
    let mut served = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let seats = chain.ledger.current().expect("a round").seats().to_vec();
        let members: Vec<MemberId> = seats.iter().map(|seat| seat.member).collect();
        assert_eq!((members[..6].to_vec(), members.len()), (founders.clone(), 8), "a quarter of the seats");
        // STAND-8: what newcomers compute comes on top; nothing of the round is lost by them.
        assert_eq!(seats[..6].iter().map(|seat| seat.quota).sum::<u32>(), 32);
        served.extend(members[6..].to_vec());
        chain.round(Vec::new());
    }
    assert_eq!(served.len(), 8, "each has its turn");
}

#[test]
fn without_an_invitation_only_those_come_whom_the_manifest_lets() {
    let mut closed = Chain::new(Admission::closed(2, 0, 64));
    refused(closed.admit(30, None, 30), "asks for an invitation");
    let list = |people: &[u8]| List::new(people.iter().map(|who| id(*who)).collect()).expect("few");
    let listed = Listed { founders: list(&[10]), nodes: list(&[30]), verifiers: list(&[VERIFIERS[0]]) };
    let mut chain = Chain::new(Admission { mode: Mode::Listed(listed), ..on_probation() });
    for who in [10, 30, VERIFIERS[0]] {
        chain.admit(who, None, who).expect("it is listed");
    }
    refused(chain.admit(31, None, 31), "does not list it");
    assert!(chain.member(10).founder && !chain.member(30).founder);
    assert_eq!(chain.member(VERIFIERS[0]).role, Role::Verifier);
    let mut open = Chain::new(Admission { mode: Mode::Open, per_round: 9, ..on_probation() });
    open.admit(30, None, 30).expect("everyone may come");
    assert!(!open.ledger.weighs(open.member(30)));
    // STAND-7: nobody makes itself a verifier, and with that its friends weighty.
    refused(open.admit(VERIFIERS[0], None, VERIFIERS[0]), "a node registers no coins");
    refused(open.admit(30, None, 30), "enrols once");
}

/// 10 was invited by the organiser, brought in 40 and 41; 40 brought in 42.
fn family() -> Chain {
    let admission = Admission { member_invites: 2, depth: 2, per_round: 9, ..Admission::closed(1, 0, 64) };
    let mut chain = Chain::new(admission);
    chain.invite(10, Role::Node, false);
    chain.bring(40, 10).expect("10 may");
    chain.bring(41, 10).expect("10 may twice");
    chain.bring(42, 40).expect("40 may");
    chain.start();
    chain.round(Vec::new());
    chain
}

#[test]
fn members_bring_in_as_many_and_as_deep_as_the_manifest_says() {
    let mut chain = family();
    assert_eq!((chain.member(42).inviter, chain.member(42).depth), (Some(id(40)), 2));
    refused(chain.bring(43, 10), "as many as it may");
    refused(chain.bring(43, 42), "too long");
    refused(chain.bring(43, 99), "only the organiser and members do");
    refused(chain.admit(43, Some(invitation(40, Role::Node, true, 1)), 40), "neither founders nor verifiers");
    let verifier = invitation(40, Role::Verifier, false, 1);
    refused(chain.admit(VERIFIERS[0], Some(verifier), 40), "neither founders nor verifiers");
    // An invitation is for one run, and for so many.
    let other = invitation(40, Role::Node, false, 1);
    let elsewhere = person(40).sign(RunId(Digest([3; 32])), &other);
    let enrol = chain.enrol(43, Some(secret_of(&other).present(chain.run(), elsewhere, id(43))));
    refused(chain.seal(Body::Admit(enrol)), "another run");
    let once = Invitation { uses: 1, ..invitation(40, Role::Node, false, 1) };
    chain.admit(43, Some(once.clone()), 40).expect("its first use");
    refused(chain.admit(44, Some(once), 40), "used up");
    let leave = person(41).sign(chain.run(), &Leave { height: chain.ledger.height() });
    chain.seal(Body::Leave(leave)).expect("a leave");
    refused(chain.bring(44, 41), "while it takes part");
}

/// What a newcomer that was not invited can make of an enrolment that it read in the ledger.
#[test]
fn stand_9_an_invitation_that_was_read_lets_nobody_in() {
    let mut chain = family();
    let run = chain.run();
    let open = invitation(ORGANISER, Role::Node, false, 60);
    chain.admit(60, Some(open.clone()), ORGANISER).expect("it holds the secret");
    let seen = chain.presented(60, &open, ORGANISER);
    let not_its_own = |chain: &mut Chain, shown: Presented| {
        let enrol = chain.enrol(61, Some(shown));
        refused(chain.seal(Body::Admit(enrol)), "has not signed for this newcomer");
    };
    // A possession for another member, and one by another key: the newcomer's own, the inviter's, another invitation's.
    not_its_own(&mut chain, seen.clone());
    let for_it = Possession { newcomer: id(61) };
    for by in [person(61), person(40)] {
        not_its_own(&mut chain, Presented { possession: by.sign(run, &for_it), ..seen.clone() });
    }
    not_its_own(&mut chain, secret(1).present(run, seen.invitation.clone(), id(61)));
    // One of another run.
    let elsewhere = secret_of(&open).present(RunId(Digest([3; 32])), seen.invitation.clone(), id(61));
    let enrol = chain.enrol(61, Some(Presented { invitation: seen.invitation.clone(), ..elsewhere }));
    refused(chain.seal(Body::Admit(enrol)), "another run");
    // The signature of a possession with another name put in.
    let body = encode(&person(61).sign(run, &for_it));
    let mut forged = encode(&seen.possession);
    let tail = forged.len() - 32;
    forged[tail..].copy_from_slice(&body[tail..]);
    let forged: Signed<Possession> = decode(&forged).expect("canonical");
    let enrol = chain.enrol(61, Some(Presented { possession: forged, ..seen }));
    refused(chain.seal(Body::Admit(enrol)), "signature");
    // Whoever was given the secret still comes.
    chain.admit(61, Some(open), ORGANISER).expect("it holds the secret");
}

#[test]
fn a_newcomer_brings_in_nobody_before_its_probation_is_over() {
    let mut chain = Chain::new(Admission { member_invites: 2, depth: 2, per_round: 9, ..on_probation() });
    chain.begin();
    chain.bring(30, 10).expect("a founder may");
    chain.round(Vec::new());
    refused(chain.bring(31, 30), "past its probation");
    chain.earn(30, 2);
    assert!(chain.ledger.weighs(chain.member(30)));
    chain.bring(31, 30).expect("it has earned it");
    refused(chain.bring(32, VERIFIERS[0]), "only a node");
}

#[test]
fn an_inviter_answers_for_those_below_it() {
    let mut chain = family();
    chain.bring(43, 41).expect("41 may");
    // 42 is convicted: nobody comes by it, nor by 40, who brought it in; 10 and 41 are not touched.
    chain.ban(42);
    assert!(chain.ledger.is_closed(chain.member(40)) && chain.ledger.is_closed(chain.member(42)));
    refused(chain.bring(50, 40), "brought in a convict");
    refused(chain.bring(50, 42), "while it takes part");
    chain.bring(50, 41).expect("another branch");
    // 41 is convicted, whom 10 brought in: everyone below 10 is closed, the honest 40 included.
    let mut chain = family();
    chain.ban(41);
    refused(chain.bring(50, 40), "brought in a convict");
    refused(chain.bring(50, 10), "brought in a convict");
    assert_eq!(chain.member(40).standing, Standing::Active, "who was there stays");
    chain.invite(51, Role::Node, false);
}

#[test]
fn ledger_21_the_organiser_closes_a_tree_and_who_is_there_stays() {
    let mut chain = family();
    let shown_early = chain.presented(50, &invitation(40, Role::Node, false, 7), 40);
    let seats = chain.ledger.derived_seats();
    let before: Vec<_> = [40, 42].map(|who| (chain.member(who).standing, chain.member(who).since)).to_vec();
    chain.close_tree(40, ORGANISER).expect("the organiser may");
    // STAND-6: neither weight nor seat nor standing is lost by it.
    assert_eq!(chain.ledger.derived_seats(), seats);
    let after: Vec<_> = [40, 42].map(|who| (chain.member(who).standing, chain.member(who).since)).to_vec();
    assert_eq!(before, after);
    assert!([40, 42].iter().all(|who| chain.ledger.weighs(chain.member(*who))));
    // An invitation from before, brought now and brought later, is worth nothing.
    let late = chain.enrol(50, Some(shown_early));
    refused(chain.seal(Body::Admit(late.clone())), "closed their tree");
    chain.round(Vec::new());
    refused(chain.seal(Body::Admit(late)), "closed their tree");
    // Other branches, and the organiser, go on.
    chain.bring(51, 41).expect("another branch");
    chain.invite(52, Role::Node, false);
    // From the root of it, everybody below is closed; for good, and once.
    let mut chain = family();
    chain.close_tree(10, ORGANISER).expect("the organiser may");
    refused(chain.bring(50, 40), "closed their tree");
    refused(chain.bring(50, 41), "closed their tree");
    refused(chain.close_tree(10, ORGANISER), "closed already");
    refused(chain.close_tree(42, ORGANISER), "closed already");
    chain.round(Vec::new());
}

#[test]
fn ledger_21_nobody_else_closes_a_tree() {
    let mut chain = family();
    // The steward that seals it, the member itself, its inviter, one below it, a stranger.
    for by in [STEWARD, 40, 10, 42, 99] {
        refused(chain.close_tree(40, by), "only the organiser does");
    }
    refused(chain.close_tree(99, ORGANISER), "only a member's tree");
    let order = CloseTree { member: id(40) };
    let elsewhere = person(ORGANISER).sign(RunId(Digest([3; 32])), &order);
    refused(chain.seal(Body::CloseTree(elsewhere)), "another run");
    // What the organiser has signed for another purpose is no order.
    let other = person(ORGANISER).sign(chain.run(), &Leave { height: chain.ledger.height() });
    let dressed = decode(&encode(&other)).expect("an envelope");
    refused(chain.seal(Body::CloseTree(dressed)), "signature");
    assert!(chain.member(40).closed.is_none());
    chain.bring(50, 40).expect("nothing has changed");
    while chain.ledger.stage() == Stage::Computing {
        chain.round(Vec::new());
    }
    refused(chain.close_tree(40, ORGANISER), "nobody comes");
}

#[test]
fn trees_that_are_closed_amid_rounds_cost_no_round_and_no_seat() {
    let run = |closing: bool| {
        let mut sim = Sim::new(Plan::behaving(11, 8, &[Behaviour::Honest; 5]));
        for number in [1, 3] {
            sim.run(sim.now() + 300);
            assert!(sim.ledger().stage() != Stage::Closed, "it is still on its way");
            if closing {
                sim.close_tree(number);
            }
        }
        sim.run(3_600_000);
        assert_eq!(sim.ledger().stage(), Stage::Closed);
        assert!(sim.heads().iter().all(|head| *head == sim.ledger().head()), "everybody follows");
        let closed = sim.ledger().members().iter().filter(|member| member.closed == Some(Closed::Ordered));
        let seats = sim.records().filter_map(|record| match record.body {
            Body::Outcome(outcome) => Some(outcome.seats),
            _ => None,
        });
        (closed.count(), seats.collect::<Vec<_>>(), sim.ledger().state().parameters)
    };
    let ((none, seats, state), (both, same_seats, same_state)) = (run(false), run(true));
    assert_eq!((none, both), (0, 2));
    assert_eq!((seats, state), (same_seats, same_state));
}

#[test]
fn parts_in_which_nothing_weighs_are_left_out_and_the_round_goes_on() {
    let mut behaviours = [Behaviour::Honest; 5];
    behaviours[0] = Behaviour::Withholds;
    behaviours[1] = Behaviour::Withholds;
    let mut sim = Sim::new(Plan {
        founders: 2,
        change: |manifest| manifest.admission = Admission { start_nodes: 2, ..on_probation() },
        ..Plan::behaving(7, 4, &behaviours)
    });
    sim.run(3_600_000);
    assert_eq!(sim.ledger().stage(), Stage::Closed);
    assert!(sim.heads().iter().all(|head| *head == sim.ledger().head()));
    let (mut outcomes, mut reassigned) = (0, 0);
    for record in sim.records() {
        match record.body {
            Body::Outcome(outcome) => {
                assert!(outcome.results.iter().all(Option::is_none), "a newcomer counted");
                assert_eq!(outcome.results.len(), 2, "founders reduce, newcomers do not");
                outcomes += 1;
            }
            Body::Reassign(_) => reassigned += 1,
            _ => {}
        }
    }
    assert_eq!((outcomes, sim.ledger().state().step), (4, 4));
    assert!(reassigned <= 4);
}

#[test]
fn a_run_of_newcomers_alone_goes_on_without_parts() {
    let behaviours = [Behaviour::Dies(Round(1), Stage::Computing), Behaviour::Honest, Behaviour::Honest];
    let mut sim = Sim::new(Plan {
        founders: 1,
        change: |manifest| manifest.admission = Admission { start_nodes: 1, ..on_probation() },
        ..Plan::behaving(8, 4, &behaviours)
    });
    sim.run(3_600_000);
    assert_eq!(sim.ledger().stage(), Stage::Closed, "it ends by {}", sim.now());
    let last = sim.ledger().current().expect("a round");
    assert_eq!((last.parts().len(), last.seats().len()), (0, 1));
    assert!(last.echoed(), "by leaves where nothing weighs");
}

/// Every contribution is asked about.
fn asked() -> Chain {
    let mut chain = Chain::new(Admission { newcomer_ppm: 1_000_000, ..Admission::closed(2, 0, 64) });
    chain.begin();
    chain.round(Vec::new());
    chain
}

#[test]
fn ledger_20_who_was_silent_until_its_round_is_forgotten_has_failed_and_may_return() {
    let mut chain = asked();
    let kept = chain.ledger.manifest().retention.contributions;
    for failures in 1..=5 {
        let round = Round(chain.ledger.next_round().0 - 1);
        let request = chain.silence(10);
        let barred = Round(round.0 + 1 + (1 << (failures - 1)));
        assert_eq!((chain.member(10).failures, chain.member(10).barred), (failures, barred));
        chain.round(Vec::new());
        while chain.ledger.next_round().0 < round.0 + kept {
            chain.round(Vec::new());
        }
        refused(chain.come_back(10), "only a member that is away");
        assert!(chain.ledger.round(round).is_some());
        chain.round(Vec::new());
        assert!(chain.ledger.round(round).is_none(), "the round is forgotten");
        assert_eq!((chain.member(10).standing, chain.member(10).failures), (Standing::Away, failures));
        refused(chain.seal(Body::Answered(request)), "an answer follows a silence");
        while chain.ledger.is_barred(barred) {
            refused(chain.come_back(10), "sits out");
            chain.round(Vec::new());
        }
        chain.come_back(10).expect("it has sat out");
        (0..2).for_each(|_| chain.round(Vec::new()));
        assert!(chain.ledger.current().expect("a round").slot_of(&id(10)).is_some(), "it has a seat again");
    }
}

#[test]
fn ledger_20_who_answers_only_after_its_silence_was_sealed_fails_each_time() {
    let mut chain = asked();
    for failures in 1..=4 {
        let request = chain.silence(10);
        chain.seal(Body::Answered(request)).expect("an answer");
        assert_eq!(chain.member(10).failures, failures);
        let mut rounds_out = 0;
        while chain.member(10).standing == Standing::Away && chain.come_back(10).is_err() {
            chain.round(Vec::new());
            rounds_out += 1;
        }
        assert_eq!(rounds_out, (1 << (failures - 1)) - 1, "from the seat on that it has already");
        (0..2).for_each(|_| chain.round(Vec::new()));
    }
}

#[test]
fn ledger_13_a_run_of_silent_members_goes_on_once_one_returns() {
    let mut chain = asked();
    for who in [10, 11] {
        chain.silence(who);
        refused(chain.come_back(who), "only a member that is away");
    }
    chain.round(Vec::new());
    assert_eq!(chain.ledger.stage(), Stage::Gathering, "nobody has a seat, and no round is ever forgotten");
    chain.come_back(10).expect("somebody must begin");
    assert_eq!((chain.member(10).standing, chain.member(10).failures), (Standing::Active, 1));
    chain.start();
    (0..9).for_each(|_| chain.round(Vec::new()));
    assert_eq!((chain.member(10).standing, chain.member(10).failures), (Standing::Active, 1), "counted once");
    assert_eq!((chain.member(11).standing, chain.member(11).failures), (Standing::Away, 1));
}

/// Rounds in which a member committed: the number of its leaves, m_eff, and whether it counted in the aggregate.
fn history(run: &Run, member: &str) -> Vec<(u32, u32, bool)> {
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    let mut history = Vec::new();
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        let Body::Outcome(outcome) = &record.body else { continue };
        let view = ledger.round(outcome.round).expect("a round just ended");
        let mut own = view.commitments().filter(|(_, c)| format!("{:#}", c.author) == member);
        history.extend(own.next().map(|(slot, c)| (c.commit.leaves, c.weight, view.counted(slot))));
    }
    history
}

#[test]
fn a_stranger_in_an_open_run_counts_once_two_verifiers_have_recomputed_enough() {
    let settings = Settings { rounds: 60, nodes: 2, verifiers: 2, audit: (1.0, 2), ..Settings::default() };
    let admission = "[admission]\nmode = \"open\"\nprobation = 6\nvouchers = 2";
    let settings = settings.to_string().replace("[admission]", admission);
    let run = Run::packed(programs!(), &settings, None);
    let mut steward = run.host();
    let founders = run.good(&["invite", &run.at("run"), "--role", "node", "--founder", "--uses", "2"]);
    let verifiers = run.invite("verifier", 2);
    let mut watches = ["left", "right"].map(|name| run.watch(name, &verifiers));
    // It comes first, without an invitation, and the run does not begin with it.
    let line = run.good(&["invite", &run.at("run")]);
    let mut newcomer = run.join("newcomer", line.trim(), &[]);
    let mut nodes = ["first", "second"].map(|name| run.join(name, founders.trim(), &[]));
    run.wait_round(20);
    let shown = run.good(&["members", &run.at("run")]);
    assert_eq!(shown.matches("founder").count(), 2, "{shown}");
    assert_eq!(newcomer.wait(), 0, "{}", newcomer.log());
    nodes
        .iter_mut()
        .chain(&mut watches)
        .for_each(|process| assert_eq!(process.wait(), 0, "{}", process.log()));
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    run.check_end(&["first", "second", "newcomer"]);
    assert_eq!(format!("{:#}", oracle::train(&run.path("run"))), run.root());
    let id = run.good(&["id", "--data-dir", &run.at("newcomer")]).trim().to_owned();
    let history = history(&run, &id);
    let ended = history.iter().position(|(_, weight, _)| *weight > 0).expect("its probation ends");
    assert!(ended >= 2, "two leaves a verifier and round, three of each are needed: {history:?}");
    assert!(history[..ended].iter().all(|(_, weight, counted)| *weight == 0 && !counted), "{history:?}");
    assert!(
        history[ended..].iter().all(|(leaves, weight, counted)| *weight == *leaves && *counted),
        "{history:?}"
    );
    let shown = run.good(&["members", &run.at("run")]);
    assert!(shown.contains("node      active, counts,"), "{shown}");
}

#[test]
fn listed_members_need_no_invitation_and_nobody_else_gets_in_without() {
    let settings = Settings { rounds: 12, nodes: 2, verifiers: 1, audit: (1.0, 2), ..Settings::default() };
    let run = Run::packed(programs!(), &settings.to_string(), None);
    let id = |name: &str| run.good(&["id", "--data-dir", &run.at(name)]).trim().to_owned();
    let (founder, node, verifier) = (id("first"), id("second"), id("watch"));
    let admission = format!(
        "[admission]\nmode = \"listed\"\nfounders = [\"{founder}\"]\nnodes = [\"{node}\"]\nverifiers = [\"{verifier}\"]"
    );
    let settings = settings.to_string().replace("[admission]", &admission);
    std::fs::write(run.path("run.toml"), settings).expect("a file");
    std::fs::remove_dir_all(run.path("run")).expect("a run that nobody is in");
    let (config, corpus, out) = (run.at("run.toml"), run.at("corpus"), run.at("run"));
    run.good(&["run", "new", "--config", &config, "--data", &corpus, "--out", &out]);
    let mut steward = run.host();
    let line = run.good(&["invite", &run.at("run")]);
    let mut stranger = run.join("stranger", line.trim(), &[]);
    assert_eq!(stranger.wait(), 1, "{}", stranger.log());
    assert!(
        stranger.log().contains("the manifest does not list it, and it has no invitation"),
        "{}",
        stranger.log()
    );
    let mut watch = run.watch("watch", line.trim());
    let mut nodes = ["first", "second"].map(|name| run.join(name, line.trim(), &[]));
    for process in nodes.iter_mut().chain([&mut watch, &mut steward]) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    let shown = run.good(&["members", &run.at("run")]);
    assert_eq!(shown.matches("node      active, counts").count(), 2, "{shown}");
    assert_eq!(shown.matches("verifier  active").count(), 1, "{shown}");
    run.check_end(&["first", "second"]);
}

#[test]
fn an_organiser_closes_a_tree_by_hand_and_the_run_goes_on() {
    let settings = Settings { rounds: 150, nodes: 2, ..Settings::default() };
    let settings = settings.to_string().replace("[admission]", "[admission]\nmember_invites = 4");
    let run = Run::packed(programs!(), &settings, None);
    let mut steward = run.host();
    let line = run.invite("node", 2);
    let mut nodes = ["first", "second"].map(|name| run.join(name, &line, &[]));
    let ticket = Ticket::from_line(&line).expect("an invitation");
    let address = format!("{:#}@{:#}@{}", ticket.run, ticket.steward, &*ticket.addresses[0]);
    let mut observer = run.observe("observer", &address);
    run.wait_round(1);
    let first = run.good(&["id", "--data-dir", &run.at("first")]).trim().to_owned();
    let line = run.good(&["invite", &run.at("first"), "--role", "node", "--uses", "3"]);
    let mut third = run.join("third", line.trim(), &[]);
    wait_for("the third node", || run.events("admit").len() == 3);
    let close = |member: &str| run.muster(&["close-tree", &run.at("run"), member]);
    let (code, output) = close(&first[..12]);
    assert!(code == 0 && output.contains("closed by the organiser"), "{code}: {output}");
    assert!(output.contains("may bring in nobody any more"), "the third node is below: {output}");
    let mut fourth = run.join("fourth", line.trim(), &[]);
    assert!(fourth.wait() == 1 && fourth.log().contains("closed their tree"), "{}", fourth.log());
    let (code, output) = close(&first);
    assert!(code == 1 && output.contains("closed already"), "{code}: {output}");
    let (code, output) = close("no-such-member");
    assert!(code == 2 && output.contains("`muster members` lists them"), "{code}: {output}");
    let (code, output) = run.muster(&["close-tree", &run.at("first"), &first]);
    assert!(code == 3, "a member has no such power: {code}: {output}");
    assert_ne!(
        steward.wait_at_most(std::time::Duration::from_millis(30)),
        Some(0),
        "the run was too short for this test"
    );
    nodes.iter_mut().chain([&mut third, &mut observer, &mut steward]).for_each(|process| {
        assert_eq!(process.wait(), 0, "{}", process.log());
    });
    run.check_end(&["first", "second", "third"]);
    assert_eq!(run.events("close-tree").len(), 1);
    assert!(observer.log().contains(&format!("closed the tree of {}", &first[..16])), "{}", observer.log());
    let shown = run.good(&["members", &run.at("run")]);
    assert!(shown.contains("brought in 1, closed by the organiser"), "{shown}");
    let (code, output) = close(&first);
    assert!(code == 1 && output.contains("the run is over"), "{code}: {output}");
}

#[test]
fn ledger_13_who_is_active_moves_once_a_round_and_says_nothing_else() {
    let mut chain = Chain::new(Admission::closed(2, 0, 64));
    chain.begin();
    let new = |port: u8| List::new(vec![Text::new(format!("sim:{port}")).expect("short")]).expect("one");
    refused(chain.come_back(10), "moved to");
    chain.move_to(10, new(90)).expect("a move");
    assert_eq!(chain.member(10).addresses, new(90));
    // Each would stay on everybody's disk.
    refused(chain.move_to(10, new(91)), "once a round");
    chain.round(Vec::new());
    chain.move_to(10, new(91)).expect("a move");
    refused(chain.move_to(10, new(92)), "once a round");
}

/// Four founders, and a beginning.
fn four() -> Chain {
    let mut chain = Chain::new(Admission::closed(2, 0, 64));
    (10..14).for_each(|who| chain.invite(who, Role::Node, true));
    chain.start();
    chain
}

impl Chain {
    fn last_is_echoed(&self) -> bool {
        self.ledger.round(Round(self.ledger.next_round().0 - 1)).expect("kept").echoed()
    }
}

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

impl Chain {
    fn is_seated(&self, who: u8) -> bool {
        self.ledger.current().is_some_and(|view| view.slot_of(&id(who)).is_some())
    }
}

#[test]
fn ledger_20_who_fails_at_an_outcome_has_no_seat_in_the_round_that_it_opens() {
    let mut chain = four();
    for failures in 1..=3 {
        assert!(chain.is_seated(13));
        let barred = Round(chain.ledger.next_round().0 + (1 << (failures - 1)));
        let before = chain.ledger.derived_seats();
        chain.freeze();
        chain.inputs(&[0, 1, 2, 3].map(Slot)).expect("inputs");
        let mut outcome = chain.ended(&[10, 11, 12, 13], Vec::new(), &[10, 11, 12]);
        let seats = std::mem::replace(&mut outcome.seats, List::new(before).expect("few"));
        refused(chain.seal(Body::Outcome(outcome.clone())), "the seats follow");
        assert_eq!(chain.member(13).failures, failures - 1, "nothing has changed");
        chain.seal(Body::Outcome(Outcome { seats, ..outcome })).expect("an outcome");
        let member = chain.member(13);
        assert_eq!((member.standing, member.failures, member.barred), (Standing::Away, failures, barred));
        assert!(!chain.is_seated(13) && chain.is_seated(12));
        while chain.come_back(13).is_err() {
            assert!(!chain.is_seated(13), "none before round {barred}");
            chain.round_reduced_by(&[10, 11, 12]);
        }
        assert!(!chain.is_seated(13), "the seats of round {} were sealed before it came back", barred);
        chain.round_reduced_by(&[10, 11, 12]);
        assert!(chain.ledger.next_round() >= barred);
    }
}

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
fn ledger_20_a_good_round_is_forgiven_before_its_failure_counts() {
    let mut chain = Chain::of(200, Admission::closed(2, 0, 64));
    (10..14).for_each(|who| chain.invite(who, Role::Node, true));
    chain.start();
    chain.round_reduced_by(&[10, 11, 12]);
    chain.come_back(13).expect("it may return at once");
    chain.round_reduced_by(&[10, 11, 12]);
    (0..63).for_each(|_| chain.round_reduced_by(&[10, 11, 12, 13]));
    assert_eq!((chain.member(13).failures, chain.member(13).good_rounds), (1, 63));
    // The contribution counts, so that this is the 64th good round; the part is missing, so that it is a failure, too.
    let round = chain.ledger.next_round();
    chain.round_reduced_by(&[10, 11, 12]);
    assert_eq!((chain.member(13).failures, chain.member(13).good_rounds), (1, 0));
    assert_eq!(chain.member(13).barred, round.next(), "as after a first failure");
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
fn ledger_20_who_keeps_a_round_without_weight_from_being_audited_by_its_silence_fails() {
    let mut chain = Chain::new(on_probation());
    chain.begin();
    (30..33).for_each(|who| chain.invite(who, Role::Node, false));
    for who in 10..12 {
        let leave = Leave { height: chain.ledger.height() };
        let leave = person(who).sign(chain.run(), &leave);
        chain.seal(Body::Leave(leave)).expect("a leave");
    }
    chain.round(Vec::new());
    chain.freeze();
    let view = chain.ledger.current().expect("a round").clone();
    assert!(!view.weighs() && view.parts().is_empty(), "newcomers alone");
    chain.outcome(&[], Vec::new()).expect("an outcome");
    assert!(!chain.last_is_echoed());
    for who in 30..33 {
        let silent = view.slot_of(&id(who)).is_some();
        assert_eq!(chain.member(who).failures, u8::from(silent), "{who}");
    }
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
            let next = roots(ledger.state().step + 1);
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
    let moved = person(10).sign(ledger.run(), &Return { height: ledger.height(), addresses });
    run.conductor.propose(Body::Return(moved));
    run.act();
    assert_eq!(run.round(), 0);
    // It never waits longer than an hour.
    for _ in 0..20 {
        run.round();
    }
    assert_eq!(run.round(), 3_600_000);
}
