//! The steward's half of a round: when to seal what.

mod awaited;
mod cases;
mod checks;
mod debts;
mod deliveries;
mod mark;
mod owed;
mod pause;
mod records;
mod results;
mod statements;
mod timing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::error::Reject;
use crate::ids::{MemberId, Part, Slot};
use crate::ledger::{Ledger, Member, Stage};
use crate::messages::record::{Body, Credit, Record};
use crate::messages::round::{Bitmap, Commit, Echo, PartResult};
use crate::sign::{Signed, Verified};
use crate::state::StateRoots;
pub use awaited::Awaited;
use cases::OldestCase;
use debts::Debts;
pub use deliveries::{ClaimedDelivery, ShownDelivery};
use mark::Mark;
pub use owed::Owed;
use pause::Barren;
use results::Results;
use timing::Timing;

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Sign this as the next record and hand it back with [`Conductor::sealed`]; once the ledger has taken it, make
    /// it durable, and only then show it.
    Seal(Body),
    /// Fetch the results of the round, apply them, answer with [`Conductor::applied`].
    Apply(Vec<Option<Signed<PartResult>>>),
    /// Contributors of more than half of a block's weight object, or half of the part's weight does not approve of it, or
    /// the part's aggregators differ: reduce this part again, answer with [`Conductor::inspected`].
    Inspect(Signed<PartResult>),
}

/// Collects what members say and decides when a phase is over.
///
/// Call a `handle`-like method, then drain [`Conductor::poll_output`]; call [`Conductor::tick`] no later than
/// [`Conductor::poll_timeout`]. Time is milliseconds of any monotonic clock.
pub struct Conductor {
    ledger: Ledger,
    live: BTreeSet<MemberId>,
    phase_began: u64,
    now: u64,
    gathered: Gathered,
    results: Results,
    /// How long it takes until values are here (ROUND-40).
    timing: Timing,
    /// Whether it makes nothing of that.
    equal_parts: bool,
    /// Credits that no outcome holds yet.
    credits: Vec<Credit>,
    outputs: VecDeque<Output>,
    sealing: bool,
    applying: bool,
    started: bool,
    /// Since when enough members are admitted for the first round.
    ready_since: Option<u64>,
    inspecting: bool,
    /// Members that have let a round wait for their Checked in vain (ROUND-21).
    marks: BTreeMap<MemberId, Mark>,
    /// The oldest round with an open case, as the docket has it; not known since the last record.
    cases: Option<OldestCase>,
    /// Members that are late, as the docket has it (AUDIT-27).
    late: BTreeSet<MemberId>,
    barren: Barren,
    debts: Debts,
    /// A convict whose past is being measured, so that no round may be spent (ROLLBACK-5).
    measured: Option<MemberId>,
}

/// What the phase in progress has gathered, by slot or part.
#[derive(Default)]
struct Gathered {
    commits: BTreeMap<Slot, Signed<Commit>>,
    echoes: BTreeMap<Slot, Signed<Echo>>,
    delivered: BTreeSet<Slot>,
    /// Whose receipts were brought, by sender and part.
    brought: BTreeSet<(Slot, Part, MemberId)>,
    receipts: BTreeMap<Part, Bitmap>,
    next: Option<StateRoots>,
}

impl Conductor {
    /// Takes over a ledger, new or read from disk. Ends no phase before [`Conductor::start`]: after a restart
    /// everything that has a receipt is taken again first, so that what is sealed leaves none of it out.
    pub fn new(ledger: Ledger, now: u64) -> Self {
        Self {
            ledger,
            live: BTreeSet::new(),
            phase_began: now,
            now,
            gathered: Gathered::default(),
            results: Results::default(),
            timing: Timing::default(),
            equal_parts: false,
            credits: Vec::new(),
            outputs: VecDeque::new(),
            sealing: false,
            applying: false,
            started: false,
            ready_since: None,
            inspecting: false,
            marks: BTreeMap::new(),
            cases: None,
            late: BTreeSet::new(),
            barren: Barren::default(),
            debts: Debts::default(),
            measured: None,
        }
    }

    /// From now on phases end. ROUND-16: the caller has taken again everything that has a receipt.
    pub fn start(&mut self) {
        self.started = true;
        self.advance();
    }

    /// From now on no share class moves by how long values take (ROUND-40).
    pub fn keep_parts_equal(&mut self) {
        self.equal_parts = true;
    }

    /// The phase begins anew, because the steward did not run for a while (ROUND-38).
    pub fn resume(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.phase_began = self.now;
        self.debts.begin(self.now);
        let now = self.now;
        self.ready_since.iter_mut().for_each(|since| *since = now);
        self.results.resume(now);
        // ROUND-40: what stood still here was nobody's line.
        self.timing.broke_off();
        // ROUND-26: whatever kept members from each other may be over, as after a restart.
        self.barren.stir();
    }

    /// The ledger so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether a member has an open channel.
    pub fn is_live(&self, member: &MemberId) -> bool {
        self.live.contains(member)
    }

    /// Next thing to do; nothing more while a record is being sealed.
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.sealing {
            return None;
        }
        // One at a time: each record names the head before it, which is known only once that is sealed.
        let output = self.outputs.pop_front()?;
        match output {
            Output::Seal(ref body) => {
                self.sealing = true;
                self.barren.proposed(&self.ledger, body);
            }
            Output::Apply(_) => self.applying = true,
            Output::Inspect(_) => self.inspecting = true,
        }
        Some(output)
    }

    /// When to call [`Conductor::tick`] at the latest.
    pub fn poll_timeout(&self) -> Option<u64> {
        // No Begin waits for a pause.
        let paused = self.paused_until().filter(|_| self.ledger.stage() == Stage::Computing);
        if paused.is_some() {
            return paused;
        }
        let patience = u64::from(self.patience()?);
        // Contributors fetch values elsewhere: what the steward owes does not lengthen their time.
        let checking = self.results.checking().map(|since| since.saturating_add(patience));
        Some(checking.unwrap_or_else(|| self.latest_end(self.began(), patience)))
    }

    /// Time goes on.
    pub fn tick(&mut self, now: u64) {
        // A clock that went back must not lengthen a phase that was nearly over.
        self.now = self.now.max(now);
        self.advance();
    }

    /// A member's channel opened or closed.
    pub fn live(&mut self, now: u64, member: MemberId, live: bool) {
        if live {
            // Who is out changes nothing by coming back; a verifier may end a probation.
            let helps = self.ledger.member(&member).is_some_and(|member| self.helps(member));
            if self.live.insert(member) && helps {
                self.barren.come(member);
            }
        } else {
            self.live.remove(&member);
        }
        self.tick(now);
    }

    /// Something outside the round is to be sealed: an admission, a ban, a return.
    pub fn propose(&mut self, body: Body) {
        self.outputs.push_back(Output::Seal(body));
    }

    /// Whether something was proposed that is not sealed yet.
    pub fn proposes(&self) -> bool {
        self.sealing || !self.outputs.is_empty()
    }

    /// The results are applied and give this state (ROUND-7); an error lists the parts whose values are unavailable.
    pub fn applied(&mut self, now: u64, next: Result<StateRoots, Vec<Part>>) {
        self.applying = false;
        match next {
            // Kept: an open case may hold the Outcome back for a while (AUDIT-26).
            Ok(roots) => self.gathered.next = Some(roots),
            // ROUND-7: whoever signs a result shows its values as well, or it counts as missing.
            Err(missing) => self.strike(missing),
        }
        self.tick(now);
    }

    /// The record that was asked for, signed.
    ///
    /// # Errors
    /// [`Reject`] when the ledger refuses it, because something else was sealed since it was proposed: it is dropped.
    pub fn sealed(&mut self, now: u64, signed: &Signed<Record>) -> Result<Verified<Record>, Reject> {
        let before = (self.ledger.stage(), self.ledger.next_round());
        self.sealing = false;
        // What was due meanwhile is due still, whatever became of this one.
        let record = self.ledger.apply(signed).inspect_err(|_| self.tick(now))?;
        // What the docket said was about the ledger before this record.
        self.cases = None;
        self.barren.sealed(&self.ledger, &record.body);
        if matches!(record.body, Body::Outcome(_)) {
            // Those that were sealed, and those of rounds that are forgotten.
            let ledger = &self.ledger;
            self.credits.retain(|credit| ledger.check_credit(credit).is_ok());
        }
        if before != (self.ledger.stage(), self.ledger.next_round()) {
            // From the seal on, by this machine's clock: no clocks are compared.
            self.phase_began = now;
            self.debts.begin(now);
            let round_over = matches!(record.body, Body::Outcome(_) | Body::Begin(_) | Body::Rewind(_));
            let before = std::mem::take(&mut self.gathered);
            if round_over {
                self.results = Results::default();
                self.timing = Timing::default();
            } else {
                // Echoes are of R_t, which a reassignment does not change; only receipts and checks are given anew.
                self.gathered.echoes = before.echoes;
                self.results.begin_phase();
            }
        }
        self.tick(now);
        Ok(record)
    }

    /// Whether a member that connects may end what has made rounds barren.
    fn helps(&self, member: &Member) -> bool {
        let newest = self.ledger.current();
        let weightless = newest.is_some_and(|view| view.freeze_digest().is_some() && !view.weighs());
        member.is_node_still() || weightless && self.ledger.is_active_verifier(&member.id)
    }

    fn patience(&self) -> Option<u32> {
        let timers = &self.ledger.manifest().timers;
        match self.ledger.stage() {
            Stage::Computing => Some(timers.commit),
            Stage::Exchanging => Some(timers.part),
            Stage::Reducing => Some(timers.result),
            Stage::Auditing => Some(timers.final_audit),
            Stage::Gathering if self.ledger.current().is_some() || self.ready_since.is_some() => {
                Some(timers.commit)
            }
            Stage::Empty | Stage::Gathering | Stage::Closed => None,
        }
    }

    /// When the wait of the present phase began.
    fn began(&self) -> u64 {
        self.ready_since.unwrap_or(self.phase_began)
    }

    /// Whether the phase has lasted as long as it may.
    pub fn overdue(&self) -> bool {
        self.patience().is_some_and(|patience| self.now >= self.end_of(self.began(), patience.into()))
    }

    fn advance(&mut self) {
        let first = self.ledger.stage() == Stage::Gathering && self.ledger.current().is_none();
        self.ready_since = (first && self.ledger.ready()).then(|| self.ready_since.unwrap_or(self.now));
        // Whatever is under way may change what follows: one step at a time.
        if !self.started || self.sealing || self.applying || self.inspecting || !self.outputs.is_empty() {
            return;
        }
        let next = match self.ledger.stage() {
            Stage::Gathering => self.begin(),
            Stage::Computing => self.freeze(),
            Stage::Exchanging => self.inputs(),
            Stage::Reducing => self.reduce(),
            Stage::Empty | Stage::Auditing | Stage::Closed => None,
        };
        self.outputs.extend(next);
    }
}
