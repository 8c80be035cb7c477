//! The steward's half of a round: when to seal what.

mod checks;
mod pause;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::assign::reassignment;
use crate::codec::List;
use crate::error::Reject;
use crate::ids::{Digest, MemberId, Part, Round, Slot};
use crate::ledger::{Ledger, Member, RoundView, Stage, Standing};
use crate::limits;
use crate::messages::enrol::Role;
use crate::messages::record::{Body, Credit, Freeze, Inputs, Outcome, Reassign, Reassigned, Record};
use crate::messages::round::{Bitmap, Commit, Delivered, Echo, PartResult};
use crate::sign::{Signed, Verified};
use crate::state::StateRoots;
use checks::{ResultsCheck, Stall};
use pause::Barren;

/// Credits that wait for an outcome at most.
const CREDITS_WAITING: usize = 8192;

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Sign this as the next record and hand it back with [`Conductor::sealed`]; once the ledger has taken it, make
    /// it durable, and only then show it.
    Seal(Body),
    /// Fetch the results of the round, apply them, answer with [`Conductor::applied`].
    Apply(Vec<Option<Signed<PartResult>>>),
    /// Contributors of more than half of a block's weight object, or the part's aggregators differ: reduce this part
    /// again, answer with [`Conductor::inspected`].
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
    /// Credits that no outcome holds yet.
    credits: Vec<Credit>,
    outputs: VecDeque<Output>,
    sealing: bool,
    applying: bool,
    started: bool,
    /// Since when the first round could begin, if everybody were here.
    ready_since: Option<u64>,
    inspecting: bool,
    /// Members that have let a round wait for their word on its results in vain.
    stalls: BTreeMap<MemberId, Stall>,
    /// The oldest round with an open case, as the docket has it; not known since the last record.
    cases: Option<OldestCase>,
    barren: Barren,
}

/// What the docket says of its open cases.
#[derive(Clone, Copy)]
struct OldestCase(Option<Round>);

/// What the phase in progress has gathered, by slot or part.
#[derive(Default)]
struct Gathered {
    commits: BTreeMap<Slot, Signed<Commit>>,
    echoes: BTreeMap<Slot, Signed<Echo>>,
    delivered: BTreeSet<Slot>,
    receipts: BTreeMap<Part, Bitmap>,
    results: BTreeMap<(Part, MemberId), ClaimedResult>,
    /// Since when every result that will come is there.
    checking: Option<u64>,
    /// What contributors say of the results.
    checked: BTreeMap<Slot, ResultsCheck>,
    /// Parts of which these aggregators signed two results.
    contested: BTreeSet<(Part, MemberId)>,
    /// Results that were reduced again and are right.
    upheld: BTreeSet<(Part, MemberId)>,
    /// Those that are wrong, or cannot be reduced again.
    struck: BTreeSet<(Part, MemberId)>,
    next: Option<StateRoots>,
}

/// What an aggregator says of a part.
struct ClaimedResult {
    signed: Signed<PartResult>,
    digest: Digest,
}

impl Conductor {
    /// Takes over a ledger, new or read from disk. Ends no phase before [`Conductor::start`]: after a restart everything that
    /// has a receipt is taken again first, so that what is sealed leaves none of it out.
    pub fn new(ledger: Ledger, now: u64) -> Self {
        Self {
            ledger,
            live: BTreeSet::new(),
            phase_began: now,
            now,
            gathered: Gathered::default(),
            credits: Vec::new(),
            outputs: VecDeque::new(),
            sealing: false,
            applying: false,
            started: false,
            ready_since: None,
            inspecting: false,
            stalls: BTreeMap::new(),
            cases: None,
            barren: Barren::default(),
        }
    }

    /// From now on phases end. ROUND-16: the caller has taken again everything that has a receipt.
    pub fn start(&mut self) {
        self.started = true;
        self.advance();
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
        let began = self.gathered.checking.unwrap_or(self.began());
        Some(began.saturating_add(u64::from(self.patience()?)))
    }

    /// Time goes on.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.advance();
    }

    /// A member's channel opened or closed.
    pub fn live(&mut self, now: u64, member: MemberId, live: bool) {
        if live {
            // Who is out, or reduces nothing, changes nothing by coming back.
            let helps = |known: &Member| {
                known.role == Role::Node && !matches!(known.standing, Standing::Banned | Standing::Left)
            };
            if self.live.insert(member) && self.ledger.member(&member).is_some_and(helps) {
                self.barren.stir();
            }
        } else {
            self.live.remove(&member);
        }
        self.tick(now);
    }

    /// Of which round the oldest open case is, by the ledger as it is now; none where every case is closed. It is to be said
    /// at the start and after each record: until then no round is opened.
    pub fn cases(&mut self, now: u64, oldest: Option<Round>) {
        self.cases = Some(OldestCase(oldest));
        self.tick(now);
    }

    /// Whether the next round waits for an open case.
    pub fn is_held(&self) -> bool {
        self.gathered.next.is_some() && self.holds_outcome()
    }

    // AUDIT-26: no round is opened with which one that has an open case would leave the window.
    fn holds_outcome(&self) -> bool {
        let last = self.ledger.current().is_some_and(|view| self.ledger.ends_with(view.round()));
        !last && self.waits_for_cases(|round| self.ledger.is_last_call(round))
    }

    fn holds_begin(&self) -> bool {
        self.waits_for_cases(|round| !self.ledger.keeps_state(round))
    }

    fn waits_for_cases(&self, is_due: impl Fn(Round) -> bool) -> bool {
        self.cases.is_none_or(|OldestCase(oldest)| oldest.is_some_and(is_due))
    }

    /// Something outside the round is to be sealed: an admission, a ban, a return.
    pub fn propose(&mut self, body: Body) {
        self.outputs.push_back(Output::Seal(body));
    }

    /// Whether something was proposed that is not sealed yet.
    pub fn proposes(&self) -> bool {
        self.sealing || !self.outputs.is_empty()
    }

    /// A verdict gives credit: the next outcome holds it. One that the ledger would refuse is dropped.
    pub fn credit(&mut self, credit: Credit) {
        let same = |other: &Credit| {
            (other.round, other.verifier, other.member) == (credit.round, credit.verifier, credit.member)
        };
        let new = self.ledger.check_credit(&credit).is_ok() && !self.credits.iter().any(same);
        if new && self.credits.len() < CREDITS_WAITING {
            self.credits.push(credit);
        }
    }

    /// A commitment. The first one of a slot counts; the caller looks for a second one.
    ///
    /// # Errors
    /// [`Reject`] as by [`Ledger::check_commit`].
    pub fn commit(&mut self, now: u64, signed: Signed<Commit>) -> Result<Verified<Commit>, Reject> {
        let commit = self.ledger.check_commit(&signed)?;
        self.gathered.commits.entry(commit.slot).or_insert(signed);
        self.tick(now);
        Ok(commit)
    }

    /// The commitment held for a slot of the open round.
    pub fn held_commit(&self, slot: Slot) -> Option<&Signed<Commit>> {
        self.gathered.commits.get(&slot)
    }

    /// An echo of the freeze; whether it is the first one of its author.
    ///
    /// # Errors
    /// [`Reject`] as by [`Ledger::check_echo`].
    pub fn echo(&mut self, now: u64, signed: Signed<Echo>) -> Result<bool, Reject> {
        let echo = self.ledger.check_echo(&signed)?;
        let slot = self.ledger.current().and_then(|view| view.slot_of(&echo.author()));
        let new = slot.filter(|slot| !self.gathered.echoes.contains_key(slot));
        if let Some(slot) = new {
            self.gathered.echoes.insert(slot, signed);
        }
        self.tick(now);
        Ok(new.is_some())
    }

    /// A member has delivered what it could; the receipts say what.
    ///
    /// # Errors
    /// [`Reject`] for another round or attempt, before the echo of a sender with weight, or for a receipt that the part's
    /// keeper did not sign for this sender.
    pub fn delivered(&mut self, now: u64, signed: &Signed<Delivered>) -> Result<(), Reject> {
        let run = self.ledger.run();
        let delivered = signed.verify(run)?;
        let view = self.ledger.current().ok_or(Reject::Stale("no round is open"))?;
        let attempt = u8::from(view.reassigned().next().is_some());
        if delivered.round != view.round()
            || delivered.attempt != attempt
            || self.ledger.stage() != Stage::Exchanging
        {
            return Err(Reject::Stale("the delivery is of another phase"));
        }
        let slot = view.slot_of(&delivered.author()).ok_or(Reject::NotEntitled("deliver: it has no seat"))?;
        let commitment =
            view.commitment(slot).ok_or(Reject::Rule("only a frozen contribution is delivered"))?;
        // ROUND-5: without its echo it could not be counted, and a receipt would bind the steward to do so.
        if commitment.weight > 0 && !self.gathered.echoes.contains_key(&slot) {
            return Err(Reject::Rule("echo the freeze first: nothing of a member counts before its echo"));
        }
        let root = commitment.commit.root;
        let mut parts: BTreeMap<Part, Vec<MemberId>> = BTreeMap::new();
        for signed in &delivered.receipts {
            let receipt = signed.verify(run)?;
            let turn = view.attempt(receipt.part).ok_or(Reject::Rule("a receipt names a part"))?;
            let fits = receipt.round == view.round() && receipt.attempt == attempt && turn == attempt;
            let about = receipt.sender == delivered.author() && receipt.root == root;
            if !fits || !about || !view.takes_in(receipt.part, &delivered.author(), &receipt.author()) {
                return Err(Reject::Rule("a receipt is signed by the part's keeper for this sender"));
            }
            parts.entry(receipt.part).or_default().push(receipt.author());
        }
        // ROUND-5: what a delivery names, it brings whole, so that its receipt promises every part of it.
        if !parts.iter().all(|(part, by)| view.is_kept(*part, &delivered.author(), by)) {
            return Err(Reject::Rule(
                "a delivery brings the receipts of all keepers of a part, or the steward's",
            ));
        }
        for part in parts.into_keys() {
            self.gathered.receipts.entry(part).or_default().insert(slot);
        }
        self.gathered.delivered.insert(slot);
        self.tick(now);
        Ok(())
    }

    /// An aggregator has reduced a part; whether this is new of it.
    ///
    /// # Errors
    /// [`Reject`] as by [`Ledger::check_result`], and while the results are being applied: what is applied is what the
    /// outcome lists.
    pub fn result(&mut self, now: u64, signed: Signed<PartResult>) -> Result<bool, Reject> {
        if self.applying || self.gathered.next.is_some() {
            return Err(Reject::Stale("the round's results are being applied"));
        }
        let result = self.ledger.check_result(&signed)?;
        let name = (result.part, result.author());
        if self.gathered.struck.contains(&name) {
            return Err(Reject::Rule("a part that was struck is not taken from its aggregator again"));
        }
        let new = !self.gathered.results.contains_key(&name);
        if new {
            self.gathered.results.insert(name, ClaimedResult { signed, digest: result.digest });
        }
        self.tick(now);
        Ok(new)
    }

    /// The result that an aggregator of the open round has said and that was not struck.
    pub fn held_result(&self, part: Part, author: &MemberId) -> Option<&Signed<PartResult>> {
        self.gathered.results.get(&(part, *author)).map(|said| &said.signed)
    }

    /// What would be sealed of the open round's parts now, with the digests.
    pub fn standing(&self) -> impl Iterator<Item = (Part, Digest, &Signed<PartResult>)> {
        let view = self.ledger.current().into_iter();
        view.flat_map(|view| (0..view.parts().len() as u16).map(move |part| (view, Part(part)))).filter_map(
            |(view, part)| {
                let (_, said) = self.said(view, part).next()?;
                Some((part, said.digest, &said.signed))
            },
        )
    }

    /// What the aggregators of a part have said, in their order.
    fn said<'a>(
        &'a self,
        view: &'a RoundView,
        part: Part,
    ) -> impl Iterator<Item = (MemberId, &'a ClaimedResult)> {
        let held = move |author| Some((author, self.gathered.results.get(&(part, author))?));
        view.aggregating(part).filter_map(held)
    }

    /// The results are applied and give this state (ROUND-7); an error lists the parts whose values could not be had.
    pub fn applied(&mut self, now: u64, next: Result<StateRoots, Vec<Part>>) {
        self.applying = false;
        match next {
            Ok(roots) => self.gathered.next = Some(roots),
            Err(missing) => missing.iter().for_each(|part| self.strike_standing(*part)),
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
        self.cases = None;
        self.barren.sealed(&self.ledger, &record.body);
        if matches!(record.body, Body::Outcome(_)) {
            // Those that were sealed, and those of rounds that are forgotten.
            let ledger = &self.ledger;
            self.credits.retain(|credit| ledger.check_credit(credit).is_ok());
        }
        if before != (self.ledger.stage(), self.ledger.next_round()) {
            self.phase_began = now;
            let round_over = matches!(record.body, Body::Outcome(_) | Body::Begin(_) | Body::Rewind(_));
            let echoes = if round_over { BTreeMap::new() } else { std::mem::take(&mut self.gathered.echoes) };
            let results =
                if round_over { BTreeMap::new() } else { std::mem::take(&mut self.gathered.results) };
            let before = if round_over { Gathered::default() } else { std::mem::take(&mut self.gathered) };
            let Gathered { upheld, struck, contested, .. } = before;
            self.gathered = Gathered { echoes, results, upheld, struck, contested, ..Gathered::default() };
        }
        self.tick(now);
        Ok(record)
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

    /// When what the round waits for now began.
    fn began(&self) -> u64 {
        self.ready_since.unwrap_or(self.phase_began)
    }

    /// Whether the phase has lasted as long as it may.
    pub fn overdue(&self) -> bool {
        self.patience().is_some_and(|patience| self.now >= self.began().saturating_add(u64::from(patience)))
    }

    fn advance(&mut self) {
        let first = self.ledger.stage() == Stage::Gathering && self.ledger.current().is_none();
        self.ready_since = (first && self.ledger.ready()).then(|| self.ready_since.unwrap_or(self.now));
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

    fn begin(&self) -> Option<Output> {
        let seats = self.ledger.derived_seats();
        let here = seats.iter().filter(|seat| self.is_live(&seat.member)).count();
        // Nobody is waited for for ever: before the first round, as long as as many are here as the run begins with.
        let least = match self.ledger.current() {
            Some(_) => 1,
            None => usize::from(self.ledger.manifest().admission.start_nodes).max(1),
        };
        let enough = self.overdue() && here >= least;
        let complete = here == seats.len() && !seats.is_empty() && !self.awaits_returns();
        let present = complete || enough;
        let begins = self.ledger.ready() && present && !self.holds_begin();
        begins.then(|| Output::Seal(Body::Begin(bounded(seats))))
    }

    /// Whether somebody is here who is away, and may return. LEDGER-6: where all have failed at once, the first one back must
    /// not have a round for itself.
    fn awaits_returns(&self) -> bool {
        let out = |member: &Member| matches!(member.standing, Standing::Away | Standing::Silent(_));
        let returns = |member: &Member| member.role == Role::Node && out(member) && self.is_live(&member.id);
        self.ledger.current().is_some() && self.ledger.members().iter().any(returns)
    }

    fn freeze(&self) -> Option<Output> {
        let view = self.ledger.current()?;
        if self.paused_until().is_some() {
            return None;
        }
        let waiting = self.waits_for(view, |slot| self.gathered.commits.contains_key(&slot));
        // ROUND-1: never with none; once no live seat lacks one, or at the timer.
        if self.gathered.commits.is_empty() || (waiting && !self.overdue()) {
            return None;
        }
        let commits = bounded(self.gathered.commits.values().cloned().collect());
        Some(Output::Seal(Body::Freeze(Freeze { round: view.round(), state: view.state().root(), commits })))
    }

    /// Whether a live member has yet to do something. One that has lost its seat since is not waited for.
    fn waits_for(&self, view: &RoundView, done: impl Fn(Slot) -> bool) -> bool {
        let mut seats = view.seats().iter().enumerate();
        seats.any(|(slot, seat)| self.is_awaited(&seat.member) && !done(Slot(slot as u16)))
    }

    fn is_awaited(&self, id: &MemberId) -> bool {
        let gone = |member: &Member| matches!(member.standing, Standing::Away | Standing::Silent(_));
        self.is_live(id) && !self.ledger.member(id).is_some_and(gone)
    }

    fn inputs(&self) -> Option<Output> {
        let view = self.ledger.current()?;
        // Nobody without weight is counted, and so none is waited for; but where nobody has any, their echoes count.
        let counts = |slot| view.commitment(slot).is_some_and(|c| c.weight > 0 || !view.weighs());
        // With weight a delivery comes after its author's echo (ROUND-5).
        let done = |slot| !counts(slot) || self.gathered.delivered.contains(&slot);
        // Without echoes nobody could audit a round in which nobody has weight (LEDGER-20).
        let has_echoed =
            |id: &MemberId| view.slot_of(id).is_some_and(|slot| self.gathered.echoes.contains_key(&slot));
        let unheard = view.unheard(has_echoed).iter().any(|id| self.is_awaited(id));
        if (self.waits_for(view, done) || unheard) && !self.overdue() {
            return None;
        }
        let second: Vec<Part> = view.reassigned().collect();
        let attempt = u8::from(!second.is_empty());
        let parts = if attempt == 1 { second } else { (0..view.parts().len() as u16).map(Part).collect() };
        let bitmap = |part| {
            let mut counted = Bitmap::default();
            let held = self.gathered.receipts.get(part).copied().unwrap_or_default();
            let weighs = |slot: &Slot| view.commitment(*slot).is_some_and(|c| c.weight > 0);
            held.slots().filter(weighs).for_each(|slot| counted.insert(slot));
            counted
        };
        let parts = bounded(parts.iter().map(bitmap).collect());
        Some(Output::Seal(Body::Inputs(Inputs { round: view.round(), attempt, parts })))
    }

    /// What follows from the results alone; when to apply them, contributors have a say in.
    fn reduced(&self) -> Option<Output> {
        let view = self.ledger.current()?;
        if let Some(next) = self.gathered.next {
            return (!self.holds_outcome()).then(|| Output::Seal(self.outcome(view, next)));
        }
        let missing: Vec<Part> = (0..view.parts().len() as u16)
            .map(Part)
            .filter(|part| self.said(view, *part).next().is_none())
            .collect();
        if self.awaits_results(view, &missing) && !self.overdue() {
            return None;
        }
        let unmoved = view.reassigned().next().is_none() && view.weighs();
        let moves = if unmoved { self.moves(view, &missing) } else { Vec::new() };
        if !moves.is_empty() {
            return Some(Output::Seal(Body::Reassign(Reassign {
                round: view.round(),
                parts: bounded(moves),
            })));
        }
        Some(Output::Apply(self.results(view)))
    }

    /// Whether a live aggregator may still say something that counts: of a part that nobody has reduced, and until
    /// parts were reassigned also of one that another has.
    fn awaits_results(&self, view: &RoundView, missing: &[Part]) -> bool {
        let first = view.reassigned().next().is_none();
        let mut parts = view.inputs().iter().enumerate().filter(|(_, inputs)| !inputs.is_empty());
        parts.any(|(part, _)| {
            let part = Part(part as u16);
            let owes = |member: MemberId| {
                let name = (part, member);
                let over = self.gathered.results.contains_key(&name) || self.gathered.struck.contains(&name);
                !over && self.is_awaited(&member)
            };
            (first || missing.contains(&part)) && view.aggregating(part).any(owes)
        })
    }

    fn moves(&self, view: &RoundView, missing: &[Part]) -> Vec<Reassigned> {
        let to = |part: &Part| {
            let (failed, _) = view.aggregator(*part)?;
            let others = reassignment(&view.seed(), *part, failed, view.aggregators());
            let awaited = |slot: &Slot| view.member_at(*slot).is_some_and(|member| self.is_awaited(&member));
            let new = |slot: &Slot| !view.aggregators_in(*part, 0).any(|had| had == *slot);
            Some(Reassigned {
                part: *part,
                aggregator: others.into_iter().find(|slot| new(slot) && awaited(slot))?,
            })
        };
        missing.iter().filter_map(to).collect()
    }

    fn results(&self, view: &RoundView) -> Vec<Option<Signed<PartResult>>> {
        let first = |part| self.said(view, Part(part)).next().map(|(_, said)| said.signed.clone());
        (0..view.parts().len() as u16).map(first).collect()
    }

    /// Of parts that two have reduced, the second one's word.
    fn seconds(&self, view: &RoundView) -> Vec<Signed<PartResult>> {
        let second = |part| {
            let mut said = self.said(view, Part(part));
            let digest = said.next()?.1.digest;
            said.find(|(_, other)| other.digest == digest).map(|(_, other)| other.signed.clone())
        };
        (0..view.parts().len() as u16).filter_map(second).collect()
    }

    fn outcome(&self, view: &RoundView, state: StateRoots) -> Body {
        let mut outcome = Outcome {
            round: view.round(),
            results: bounded(self.results(view)),
            echoes: bounded(self.gathered.echoes.values().cloned().collect()),
            state,
            seats: List::default(),
            credits: bounded(self.due_credits()),
            seconds: bounded(self.seconds(view)),
        };
        outcome.seats = bounded(self.ledger.seats_after(&outcome));
        Body::Outcome(outcome)
    }
}

impl Conductor {
    fn due_credits(&self) -> Vec<Credit> {
        let due = self.credits.iter().filter(|credit| self.ledger.check_credit(credit).is_ok());
        due.take(limits::CREDITS).cloned().collect()
    }
}

fn bounded<T, const MAX: usize>(items: Vec<T>) -> List<T, MAX> {
    List::new(items).expect("slots and parts are bounded by the ledger")
}
