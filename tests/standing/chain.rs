//! A ledger with people on it, whose records a test writes; nothing is computed.

use std::sync::Arc;

use muster_core::codec::{List, Text};
use muster_core::coins::{CoinKind, CoinTree};
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Part, Round, RunId, Slot};
use muster_core::ledger::{Ledger, Member, Standing};
use muster_core::manifest::Admission;
use muster_core::manifest::fixture::tiny;
use muster_core::messages::audit::{AuditRequest, FindingKind, Jury};
use muster_core::messages::enrol::{
    Addresses, CloseTree, Engagement, Enrol, Invitation, InvitationSecret, Presented, Return, Role,
};
use muster_core::messages::record::{Ban, Body, Credit, Freeze, Inputs, Outcome};
use muster_core::messages::round::{Bitmap, Commit, Echo, PartResult};
use muster_core::sign::{Identity, Signed};
use muster_core::state::{ShardRoots, StateRoots};

pub const ORGANISER: u8 = 1;
pub const STEWARD: u8 = 2;
pub const VERIFIERS: [u8; 2] = [200, 201];

pub fn person(number: u8) -> Identity {
    Identity::from_secret(&[number; 32])
}

pub fn id(number: u8) -> MemberId {
    person(number).id()
}

pub fn roots(step: u32) -> StateRoots {
    let digest = Digest([step as u8; 32]);
    StateRoots::from([ShardRoots {
        step,
        beta_powers: [0; 2],
        exponents: digest,
        parameters: digest,
        first: digest,
        second: digest,
    }])
}

pub fn invitation(by: u8, role: Role, founder: bool, nonce: u8) -> Invitation {
    Invitation { role, uses: 9, expires: u64::MAX, key: secret(by ^ nonce).key(), founder }
}

pub fn secret(number: u8) -> InvitationSecret {
    let mut secret = [number; 32];
    secret[0] = !number;
    InvitationSecret::new(secret)
}

/// The secret of an invitation that [`invitation`] made.
pub fn secret_of(invitation: &Invitation) -> InvitationSecret {
    let mut secrets = (0..=u8::MAX).map(secret);
    secrets.find(|secret| secret.key() == invitation.key).expect("it was made here")
}

/// On probation for eight leaves, two of each contribution being drawn.
pub fn on_probation() -> Admission {
    Admission { probation: 8, vouchers: 2, ..Admission::closed(2, 0, 64) }
}

/// What everybody who is seated in the open round commits to.
pub fn commits(ledger: &Ledger) -> Vec<Signed<Commit>> {
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
            route: None,
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
pub struct Chain {
    pub ledger: Ledger,
}

impl Chain {
    pub fn new(admission: Admission) -> Self {
        Self::of(60, admission)
    }

    pub fn of(rounds: u32, admission: Admission) -> Self {
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

    pub fn run(&self) -> RunId {
        self.ledger.run()
    }

    pub fn seal(&mut self, body: Body) -> Result<(), Reject> {
        let signed = person(STEWARD).sign(self.run(), &self.ledger.record(body));
        self.ledger.apply(&signed).map(drop)
    }

    pub fn coins(verifier: u8) -> CoinTree {
        CoinTree::new([verifier; 32], Round(0), 64, 8).expect("few coins")
    }

    /// An invitation by somebody, as its holder presents it.
    pub fn presented(&self, who: u8, invitation: &Invitation, by: u8) -> Presented {
        let signed = person(by).sign(self.run(), invitation);
        secret_of(invitation).present(self.run(), signed, id(who))
    }

    pub fn enrol(&self, who: u8, invitation: Option<Presented>) -> Signed<Enrol> {
        let address = Text::new(format!("sim:{who}")).expect("short");
        let coins = VERIFIERS.contains(&who).then(|| Self::coins(who).terms());
        let addresses = List::new(vec![address]).expect("one");
        person(who).sign(
            self.run(),
            &Enrol { invitation, addresses, coins, name: Default::default(), engagement: Default::default() },
        )
    }

    pub fn admit(&mut self, who: u8, invitation: Option<Invitation>, by: u8) -> Result<(), Reject> {
        let invitation = invitation.map(|invitation| self.presented(who, &invitation, by));
        let enrol = self.enrol(who, invitation);
        self.seal(Body::Admit(enrol))
    }

    /// By the organiser.
    pub fn invite(&mut self, who: u8, role: Role, founder: bool) {
        self.admit(who, Some(invitation(ORGANISER, role, founder, who)), ORGANISER)
            .expect("a good enrolment");
    }

    /// By a member.
    pub fn bring(&mut self, who: u8, by: u8) -> Result<(), Reject> {
        self.admit(who, Some(invitation(by, Role::Node, false, who)), by)
    }

    /// Two founders, two verifiers, and a beginning.
    pub fn begin(&mut self) {
        (10..12).for_each(|who| self.invite(who, Role::Node, true));
        VERIFIERS.into_iter().for_each(|who| self.invite(who, Role::Verifier, false));
        self.start();
    }

    pub fn start(&mut self) {
        let seats = List::new(self.ledger.derived_seats()).expect("few");
        self.seal(Body::Begin(seats)).expect("a beginning");
    }

    pub fn member(&self, who: u8) -> &Member {
        self.ledger.member(&id(who)).expect("a member")
    }

    pub fn freeze(&mut self) {
        self.freeze_of(commits(&self.ledger)).expect("a freeze");
    }

    pub fn freeze_of(&mut self, commits: Vec<Signed<Commit>>) -> Result<(), Reject> {
        let view = self.ledger.current().expect("a round");
        let (round, state) = (view.round(), view.state().root());
        self.seal(Body::Freeze(Freeze { round, state, commits: List::new(commits).expect("few") }))
    }

    pub fn inputs(&mut self, counted: &[Slot]) -> Result<(), Reject> {
        let view = self.ledger.current().expect("a round");
        let mut bitmap = Bitmap::default();
        counted.iter().for_each(|slot| bitmap.insert(*slot));
        let parts = List::new(vec![bitmap; view.parts().len()]).expect("few");
        let inputs = Inputs { round: view.round(), attempt: 0, parts };
        self.seal(Body::Inputs(inputs))
    }

    pub fn outcome(&mut self, echoes: &[u8], credits: Vec<Credit>) -> Result<(), Reject> {
        self.seal(Body::Outcome(self.ended(echoes, credits, &[])))
    }

    /// The end of the open round, with the parts of these aggregators.
    pub fn ended(&self, echoes: &[u8], credits: Vec<Credit>, reducers: &[u8]) -> Outcome {
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
            state: roots(self.ledger.state().step() + 1),
            seats: List::default(),
            credits: List::new(credits).expect("few"),
            seconds: List::default(),
            steps: List::default(),
        };
        outcome.seats = List::new(self.ledger.seats_after(&outcome)).expect("few");
        outcome
    }

    /// A round in which everybody counts, and only these aggregators reduce their parts.
    pub fn round_reduced_by(&mut self, reducers: &[u8]) {
        self.freeze();
        let slots = 0..self.ledger.current().expect("a round").seats().len() as u16;
        self.inputs(&slots.map(Slot).collect::<Vec<_>>()).expect("inputs");
        let everybody: Vec<u8> = (0..=u8::MAX).collect();
        self.seal(Body::Outcome(self.ended(&everybody, Vec::new(), reducers))).expect("an outcome");
    }

    /// A round in which everybody commits and echoes, and nothing is reduced.
    pub fn round(&mut self, credits: Vec<Credit>) {
        self.freeze();
        self.inputs(&[]).expect("inputs");
        let everybody: Vec<u8> = (0..=u8::MAX).collect();
        self.outcome(&everybody, credits).expect("an outcome");
    }

    /// Credit for the newest finished round.
    pub fn credit(&self, who: u8, verifier: u8) -> Credit {
        let round = Round(self.ledger.next_round().0 - 1);
        Credit { verdict: Digest([verifier; 32]), round, member: id(who), verifier: id(verifier), leaves: 2 }
    }

    /// Credit for the next round in which this verifier is drawn to inspect the newcomer.
    pub fn drawn(&mut self, who: u8, verifier: u8) -> Credit {
        loop {
            let view = self.ledger.round(Round(self.ledger.next_round().0 - 1)).expect("kept");
            let inspector = view.slot_of(&id(who)).and_then(|slot| view.inspector(slot));
            if inspector == Some(id(verifier)) {
                return self.credit(who, verifier);
            }
            self.round(Vec::new());
        }
    }

    /// Rounds in which a newcomer earns two leaves from each verifier, `times` times.
    pub fn earn(&mut self, who: u8, times: u32) {
        for _ in 0..times {
            for verifier in VERIFIERS {
                let credit = self.drawn(who, verifier);
                self.round(vec![credit]);
            }
        }
    }

    /// An order to close the tree of a member, whoever signs it.
    pub fn close_tree(&mut self, whose: u8, by: u8) -> Result<(), Reject> {
        let order = person(by).sign(self.run(), &CloseTree { member: id(whose) });
        self.seal(Body::CloseTree(order))
    }

    /// Who inspects a member's contribution to the newest finished round.
    pub fn inspector(&self, who: u8) -> u8 {
        let view = self.ledger.round(Round(self.ledger.next_round().0 - 1)).expect("kept");
        let inspector = view.slot_of(&id(who)).and_then(|slot| view.inspector(slot));
        let inspector = VERIFIERS.into_iter().find(|verifier| inspector == Some(id(*verifier)));
        inspector.expect("an inspector")
    }

    /// A verifier's request about a member's contribution to the newest finished round.
    pub fn request(&self, who: u8, verifier: u8) -> Signed<AuditRequest> {
        let view = self.ledger.round(Round(self.ledger.next_round().0 - 1)).expect("kept");
        let request = AuditRequest {
            round: view.round(),
            freeze: view.freeze_digest().expect("frozen"),
            target: id(who),
            coin: Self::coins(verifier).open(CoinKind::Node, view.round(), 0),
        };
        person(verifier).sign(self.run(), &request)
    }

    /// Seals that a member did not answer its inspector about the newest finished round, and gives the request.
    pub fn silence(&mut self, who: u8) -> Digest {
        let request = self.request(who, self.inspector(who));
        self.seal(Body::Silence(request.clone())).expect("a silence");
        assert_eq!(self.member(who).standing, Standing::Silent(request.digest()));
        request.digest()
    }

    pub fn come_back(&mut self, who: u8) -> Result<(), Reject> {
        let addresses = self.member(who).addresses.clone();
        self.move_to(who, addresses)
    }

    pub fn move_to(&mut self, who: u8, addresses: Addresses) -> Result<(), Reject> {
        self.say(who, addresses, Engagement::default())
    }

    pub fn engage(&mut self, who: u8, engagement: Engagement) -> Result<(), Reject> {
        let addresses = self.member(who).addresses.clone();
        self.say(who, addresses, engagement)
    }

    fn say(&mut self, who: u8, addresses: Addresses, engagement: Engagement) -> Result<(), Reject> {
        let back = Return { height: self.ledger.height(), addresses, engagement };
        self.seal(Body::Return(person(who).sign(self.run(), &back)))
    }

    pub fn ban(&mut self, who: u8) {
        self.convict(who, FindingKind::LeafMismatch);
    }

    pub fn convict(&mut self, who: u8, finding: FindingKind) {
        let ban = Ban {
            culprit: id(who),
            effective: self.ledger.first_round_without(),
            round: Round(0),
            finding,
            evidence: Digest([1; 32]),
            accuser: id(STEWARD),
            jury: Jury::default(),
        };
        self.seal(Body::Ban(ban)).expect("a ban");
    }

    pub fn last_is_echoed(&self) -> bool {
        self.ledger.round(Round(self.ledger.next_round().0 - 1)).expect("kept").echoed()
    }

    pub fn is_seated(&self, who: u8) -> bool {
        self.ledger.current().is_some_and(|view| view.slot_of(&id(who)).is_some())
    }
}

/// Every contribution is asked about.
pub fn asked() -> Chain {
    let mut chain = Chain::new(Admission { newcomer_ppm: 1_000_000, ..Admission::closed(2, 0, 64) });
    chain.begin();
    chain.round(Vec::new());
    chain
}

/// Four founders, and a beginning.
pub fn four() -> Chain {
    let mut chain = Chain::new(Admission::closed(2, 0, 64));
    (10..14).for_each(|who| chain.invite(who, Role::Node, true));
    chain.start();
    chain
}

/// 10 was invited by the organiser, brought in 40 and 41; 40 brought in 42.
pub fn family() -> Chain {
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

pub fn refused<T: std::fmt::Debug>(result: Result<T, Reject>, words: &str) {
    let why = result.expect_err(words).to_string();
    assert!(why.contains(words), "{why:?} lacks {words:?}");
}
