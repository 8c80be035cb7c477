use std::sync::Arc;

use super::docket::Docket;
use super::*;
use crate::codec::{List, Real};
use crate::coins::{CoinKind, draw};
use crate::contribution::PackedContribution;
use crate::error::Reject;
use crate::ids::{Block, Digest, ShardId};
use crate::layout::Layout;
use crate::ledger::fixture::chain::{Chain, coins, manifest, node, slots, verifier};
use crate::ledger::{Ledger, RoundView};
use crate::manifest::{Profile, Tolerance};
use crate::messages::audit::{
    AuditRequest, Finding, LeafResult, Recomputation, ResultsSeal, TableOpening, TableRow, TableSeal,
    Verdict, results_seal, table_seal,
};
use crate::messages::evidence::{FalseRecomputation, FalseVerdict, Total, Transcript};
use crate::messages::record::{Body, Record};
use crate::messages::round::Commit;
use crate::messages::wire::{BlockData, Notice};
use crate::sign::{Message, Signed};
use crate::sketch::{Probe, Sketch};
use crate::state::{LeafJob, State, Update};

/// Leaves that look like gradients, another one for each number.
struct Leaves;

impl Arithmetic for Leaves {
    fn initial(&mut self, _: &Manifest, _: &[Vec<u32>]) -> State {
        unreachable!("no run begins here")
    }

    fn leaf(&mut self, _: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
        let number = job.leaf.0 as usize;
        q.iter_mut().enumerate().for_each(|(c, q)| *q = ((c * 31 + number * 17) % 101) as i32 - 50);
        number as i64 + 3
    }

    fn apply(&mut self, _: &Manifest, _: &mut State, _: &Update) {}

    fn evaluate(&mut self, _: &Manifest, _: &State, _: &[Vec<u32>]) -> f64 {
        0.0
    }
}

/// What a judge has at hand.
#[derive(Clone)]
struct Shelf {
    state: Option<State>,
    /// The integers that somebody shows as those of the contribution.
    q: Option<Arc<PackedContribution>>,
}

impl Witness for Shelf {
    fn state(&mut self, _: &Digest, _: &[ShardId]) -> Option<State> {
        self.state.clone()
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        Some(indices.iter().map(|_| Vec::new()).collect())
    }

    fn contribution(&mut self, _: Round, _: &MemberId) -> Option<Arc<PackedContribution>> {
        self.q.clone()
    }

    fn round(&mut self, _: Round) -> Option<RoundView> {
        None
    }

    fn block(&mut self, _: Round, _: &MemberId, _: Block) -> Option<BlockData> {
        None
    }
}

/// An audit of node 1's contribution of two leaves, of which one is drawn, by verifier 0.
struct Scene {
    chain: Chain,
    freeze: Signed<Record>,
    commit: Commit,
    /// The true integers, and the rows of the true leaves.
    q: Vec<i32>,
    rows: Vec<TableRow>,
}

const SALT: [u8; 32] = [8; 32];

impl Scene {
    /// `change` is what node 1 lies about in its commitment.
    fn new(change: fn(&mut Commit)) -> Self {
        Self::of(Chain::begin(), change)
    }

    /// The same in a profile where honest machines differ.
    fn tolerant() -> Self {
        let mut manifest = manifest(4);
        let bound = Real::new(0.1).unwrap();
        manifest.profile = Profile::F32;
        manifest.tolerance = Tolerance { groups: List::new(vec![bound]).unwrap(), loss: bound };
        Self::of(Chain::begin_with(manifest), |_| ())
    }

    fn of(mut chain: Chain, change: fn(&mut Commit)) -> Self {
        let manifest = chain.ledger.manifest().clone();
        let state =
            State { parameters: vec![0.0; chain.ledger.layout().parameters()].into(), ..State::default() };
        let mut shelf = Shelf { state: Some(state.clone()), q: None };
        let mut sums = Vec::new();
        let run = chain.ledger.run();
        let mut commits = Vec::new();
        for number in 0..4 {
            let commit = chain.commitment(number, 2);
            let sum = recompute_sum(&manifest, &commit, &state, &mut shelf, &mut Leaves).unwrap();
            let mut commit = Commit { root: sum.root(&manifest), loss: sum.loss, ..commit };
            if number == 1 {
                change(&mut commit);
            }
            commits.push((number, commit));
            sums.push(sum);
        }
        let signed = commits.iter().map(|(number, commit)| node(*number).sign(run, commit)).collect();
        let freeze = chain.seal(chain.frozen(signed));
        let commit = commits[1].1.clone();
        chain.seal(chain.inputs(0, chain.parts().map(|_| slots(0..4)).collect()));
        chain.seal(Body::Outcome(chain.outcome()));
        let mut scene = Self { chain, freeze, commit, q: sums[1].q.clone(), rows: Vec::new() };
        scene.rows = (0..2).map(|position| scene.row(position, 0)).collect();
        scene
    }

    fn honest() -> Self {
        Self::new(|_| ())
    }

    fn ledger(&self) -> &Ledger {
        &self.chain.ledger
    }

    fn state(&self) -> State {
        State { parameters: vec![0.0; self.ledger().layout().parameters()].into(), ..State::default() }
    }

    fn probe(&self) -> Probe {
        probe(self.ledger().manifest(), &self.request(), &self.request().claimed().unwrap())
    }

    /// The row of a leaf of which every coefficient is so far off.
    fn row(&self, position: u32, off: i32) -> TableRow {
        let (manifest, state) = (self.ledger().manifest(), self.state());
        let mut shelf = Shelf { state: None, q: None };
        let (commit, state, witness, arithmetic) = (&self.commit, &state, &mut shelf, &mut Leaves);
        let mut recomputing = Recomputing { manifest, commit, state, witness, arithmetic };
        let (mut q, loss) = recomputing.leaf(position).unwrap();
        q.iter_mut().for_each(|q| *q += off);
        self.probe().row(&q, loss)
    }

    fn packed(&self, q: &[i32]) -> Arc<PackedContribution> {
        Arc::new(PackedContribution::new(&Layout::of_run(self.ledger().manifest()), q))
    }

    /// A judge that has everything.
    fn shelf(&self) -> Shelf {
        Shelf { state: Some(self.state()), q: Some(self.packed(&self.q)) }
    }

    fn judge(&self, evidence: &Evidence, mut shelf: Shelf) -> Judgement {
        super::judge(self.ledger().manifest(), evidence, &mut shelf, &mut Leaves)
    }

    fn signed<M: Message>(&self, by: &crate::sign::Identity, message: &M) -> Signed<M> {
        by.sign(self.ledger().run(), message)
    }

    fn request(&self) -> Signed<AuditRequest> {
        self.chain.request(0, Round(0), node(1).id())
    }

    fn table(&self, rows: &[TableRow]) -> Signed<TableSeal> {
        let freeze = self.ledger().round(Round(0)).and_then(RoundView::freeze_digest).unwrap();
        let seal = table_seal(&SALT, &List::new(rows.to_vec()).unwrap());
        let request = self.request().digest();
        let table = TableSeal { request, round: Round(0), freeze, root: self.commit.root, seal };
        self.signed(&node(1), &table)
    }

    /// The position that the coin draws once a table is sealed.
    fn drawn(&self, table: &Signed<TableSeal>) -> u32 {
        let coin = coins(0).open(CoinKind::Leaf, Round(0), leaf_coin(self.commit.slot)).unwrap();
        let coin = coin.verify(&coins(0).terms()).unwrap();
        let table = table.claimed().unwrap();
        let least = self.ledger().manifest().audit.leaves;
        draw(&coin, &table.freeze, &table.seal, self.commit.leaves, least)[0]
    }

    fn results(&self, table: &Signed<TableSeal>, results: &[LeafResult]) -> Signed<ResultsSeal> {
        let seal = results_seal(&SALT, &List::new(results.to_vec()).unwrap());
        let sealed = ResultsSeal { request: self.request().digest(), table: table.digest(), seal };
        self.signed(&verifier(0), &sealed)
    }

    fn opening(&self, results: &Signed<ResultsSeal>, rows: &[TableRow]) -> Signed<TableOpening> {
        let rows = List::new(rows.to_vec()).unwrap();
        let request = self.request().digest();
        self.signed(&node(1), &TableOpening { request, results: results.digest(), salt: SALT, rows })
    }

    /// What the verifier would recompute of a position.
    fn result(&self, position: u32) -> LeafResult {
        LeafResult { position, row: self.rows[position as usize].clone() }
    }

    fn verdict(
        &self,
        opening: &Signed<TableOpening>,
        results: &[LeafResult],
        finding: Finding,
    ) -> Signed<Verdict> {
        let verdict = Verdict {
            request: self.request().digest(),
            opening: opening.digest(),
            coin: coins(0).open(CoinKind::Leaf, Round(0), leaf_coin(self.commit.slot)).unwrap(),
            salt: SALT,
            results: List::new(results.to_vec()).unwrap(),
            total: self.probe().sketch(&self.q),
            finding,
        };
        self.signed(&verifier(0), &verdict)
    }

    /// The whole audit: the member shows these rows, the verifier recomputes and finds this.
    fn transcript(&self, rows: &[TableRow], finding: Finding) -> Transcript {
        let table = self.table(rows);
        let shown = [self.result(self.drawn(&table))];
        self.transcript_with(rows, &shown, finding)
    }

    fn transcript_with(&self, rows: &[TableRow], shown: &[LeafResult], finding: Finding) -> Transcript {
        let table = self.table(rows);
        let results = self.results(&table, shown);
        let opening = self.opening(&results, rows);
        let verdict = self.verdict(&opening, shown, finding);
        Transcript { freeze: self.freeze.clone(), request: self.request(), table, results, opening, verdict }
    }

    /// The same as evidence against its verifier.
    fn against(&self, transcript: Transcript) -> Evidence {
        let admit = self.ledger().member(&verifier(0).id()).unwrap().admitted.clone().unwrap();
        Evidence::Verdict(FalseVerdict { admit, transcript })
    }
}

/// Rows that are wrong leaf by leaf and add up to the same.
fn shifted(rows: &[TableRow]) -> Vec<TableRow> {
    let mut rows = rows.to_vec();
    for (row, by) in rows.iter_mut().zip([1, crate::sketch::PRIME - 1]) {
        let Sketch::Fingerprint(value) = &mut row.sketch else { unreachable!() };
        *value = crate::sketch::add(*value, [by, by]);
    }
    rows
}

/// Rows whose losses do not add up.
fn costlier(rows: &[TableRow]) -> Vec<TableRow> {
    let mut rows = rows.to_vec();
    rows[0].loss += 1;
    rows
}

/// Of what somebody is found guilty, and who.
fn convicted(judgement: &Judgement) -> Option<(MemberId, FindingKind)> {
    match judgement {
        Judgement::Guilty { culprit, finding, .. } => Some((*culprit, *finding)),
        _ => None,
    }
}

const LEAF: Finding = Finding::Guilty(FindingKind::LeafMismatch);

#[test]
fn audit_6_a_table_is_opened_once_after_the_results_and_fits_its_seal() {
    let scene = Scene::honest();
    let mut docket = Docket::default();
    let mut post = |notice: Notice| docket.post(0, scene.ledger(), &notice).map(drop);
    let table = scene.table(&scene.rows);
    let shown = [scene.result(scene.drawn(&table))];
    let results = scene.results(&table, &shown);
    let opening = scene.opening(&results, &scene.rows);
    post(Notice::Request(scene.request())).unwrap();
    post(Notice::Table(table.clone())).unwrap();
    let early = post(Notice::Opening(opening.clone()));
    assert_eq!(early, Err(Reject::Rule("a table is opened after the results are sealed")));
    post(Notice::Results(results.clone())).unwrap();
    for rows in [&scene.rows[..1], &shifted(&scene.rows)] {
        let wrong = post(Notice::Opening(scene.opening(&results, rows)));
        assert_eq!(wrong, Err(Reject::Rule("the opening fits its seal")));
    }
    post(Notice::Opening(opening.clone())).unwrap();
    assert_eq!(post(Notice::Opening(opening)), Err(Reject::Rule("a table is opened once")));
    // A seal of too few rows fits its opening, which is refused for that.
    let short = scene.transcript_with(&scene.rows[..1], &shown, Finding::Pass);
    let refused = check_steps(scene.ledger().manifest(), &Evidence::Audit(short));
    assert_eq!(refused, Err(Reject::Rule("the table has a row for each leaf")));
}

#[test]
fn audit_4_a_verdict_is_about_the_leaves_that_its_coin_draws() {
    let scene = Scene::honest();
    let table = scene.table(&scene.rows);
    let drawn = scene.drawn(&table);
    let take = |position: u32| {
        let mut docket = Docket::default();
        let shown = [scene.result(position)];
        let audit = scene.transcript_with(&scene.rows, &shown, Finding::Pass);
        let steps = [
            Notice::Request(audit.request),
            Notice::Table(audit.table),
            Notice::Results(audit.results),
            Notice::Opening(audit.opening),
        ];
        steps.iter().for_each(|step| drop(docket.post(0, scene.ledger(), step).unwrap()));
        docket.post(0, scene.ledger(), &Notice::Verdict(audit.verdict)).map(drop)
    };
    assert_eq!(take(drawn), Ok(()));
    assert_eq!(take(1 - drawn), Err(Reject::Rule("a verdict is about the leaves that its coin draws")));
}

#[test]
fn audit_7_only_integers_that_the_frozen_root_proves_are_taken_for_q() {
    let scene = Scene::honest();
    let manifest = scene.ledger().manifest();
    let frozen = frozen_commit(manifest, &scene.freeze, &node(1).id()).unwrap();
    let layout = Layout::of_run(manifest);
    let found = committed_total(manifest, &frozen, &mut scene.shelf());
    assert_eq!(found.and_then(|q| q.whole(&layout)).as_ref(), Some(&scene.q));
    let mut other = scene.q.clone();
    other[0] += 1;
    for q in [other, scene.q[1..].to_vec()] {
        let mut shelf = Shelf { q: Some(scene.packed(&q)), ..scene.shelf() };
        assert!(committed_total(manifest, &frozen, &mut shelf).is_none());
        // AUDIT-10: all leaves stand for what nobody has shown.
        let audit = Evidence::Audit(scene.transcript(&scene.rows, Finding::Pass));
        assert!(matches!(scene.judge(&audit, shelf), Judgement::NotGuilty(_)));
    }
}

#[test]
fn audit_11_what_is_unavailable_leaves_undecided_only_what_still_needs_it() {
    let scene = Scene::honest();
    let judge = |rows: &[TableRow], shelf| scene.judge(&Evidence::Audit(scene.transcript(rows, LEAF)), shelf);
    let no_state = || Shelf { state: None, ..scene.shelf() };
    let no_q = || Shelf { q: None, ..scene.shelf() };
    assert!(matches!(judge(&scene.rows, no_state()), Judgement::Undecided(_)));
    assert!(matches!(judge(&scene.rows, scene.shelf()), Judgement::NotGuilty(_)));
    let sum = Some((node(1).id(), FindingKind::SumMismatch));
    assert_eq!(convicted(&judge(&costlier(&scene.rows), no_state())), sum, "losses convict without a state");
    let leaf = Some((node(1).id(), FindingKind::LeafMismatch));
    assert_eq!(convicted(&judge(&shifted(&scene.rows), no_q())), leaf, "a shown leaf convicts without Q");
}

#[test]
fn audit_11_malformed_evidence_convicts_nobody() {
    let scene = Scene::honest();
    let mut mixed = scene.transcript(&shifted(&scene.rows), LEAF);
    mixed.opening = scene.opening(&scene.results(&mixed.table, &[]), &scene.rows);
    assert!(matches!(scene.judge(&Evidence::Audit(mixed), scene.shelf()), Judgement::Malformed(_)));
    let run = scene.ledger().run();
    let pair = |second: &Signed<Commit>| {
        let first = node(1).sign(run, &scene.commit);
        Evidence::Equivocation(Equivocation { first, second: second.clone() })
    };
    let changed = Commit { loss: 0, ..scene.commit.clone() };
    let judged = scene.judge(&pair(&node(1).sign(run, &changed)), scene.shelf());
    assert_eq!(convicted(&judged), Some((node(1).id(), FindingKind::Equivocation)));
    let other_author = node(2).sign(run, &changed);
    let other_round = node(1).sign(run, &Commit { round: Round(1), ..changed });
    for second in [other_author, other_round] {
        assert!(matches!(scene.judge(&pair(&second), scene.shelf()), Judgement::Malformed(_)));
    }
    let total = |culprit| Evidence::Total(Total { freeze: scene.freeze.clone(), culprit });
    assert!(matches!(scene.judge(&total(node(1).id()), scene.shelf()), Judgement::NotGuilty(_)));
    let nobody = scene.judge(&total(node(9).id()), scene.shelf());
    assert!(matches!(nobody, Judgement::Malformed(_)), "nothing of it is frozen");
}

#[test]
fn duty_9_a_verifier_answers_for_what_it_passes_and_for_what_it_accuses() {
    let scene = Scene::honest();
    let judge = |rows: &[TableRow], finding| {
        let transcript = scene.transcript(rows, finding);
        scene.judge(&scene.against(transcript), scene.shelf())
    };
    assert!(matches!(judge(&scene.rows, Finding::Pass), Judgement::NotGuilty(_)));
    let acquittal = Some((verifier(0).id(), FindingKind::FalseAcquittal));
    assert_eq!(convicted(&judge(&shifted(&scene.rows), Finding::Pass)), acquittal, "a wrong leaf");
    assert_eq!(
        convicted(&judge(&costlier(&scene.rows), Finding::Pass)),
        acquittal,
        "losses that do not add up"
    );
    let accusation = Some((verifier(0).id(), FindingKind::FalseAccusation));
    assert_eq!(convicted(&judge(&scene.rows, LEAF)), accusation);
    // What the member did is found, whatever the verdict calls it.
    let sum = Finding::Guilty(FindingKind::SumMismatch);
    assert!(matches!(judge(&shifted(&scene.rows), sum), Judgement::NotGuilty(_)));
}

#[test]
fn duty_9_the_leaves_are_those_of_the_admitted_coins() {
    let scene = Scene::honest();
    let drawn = scene.drawn(&scene.table(&scene.rows));
    let other = scene.transcript_with(&scene.rows, &[scene.result(1 - drawn)], Finding::Pass);
    let judged = scene.judge(&scene.against(other), scene.shelf());
    assert_eq!(convicted(&judged), Some((verifier(0).id(), FindingKind::FalseAcquittal)));
    let Evidence::Verdict(mut accused) = scene.against(scene.transcript(&scene.rows, Finding::Pass)) else {
        unreachable!()
    };
    accused.admit = scene.freeze.clone();
    let judged = scene.judge(&Evidence::Verdict(accused), scene.shelf());
    assert!(matches!(judged, Judgement::Malformed(_)), "no admission");
}

#[test]
fn duty_12_what_a_verifier_says_of_all_leaves_is_held_against_them() {
    let (right, wrong) = (Scene::honest(), Scene::new(|commit| commit.loss += 1));
    let judge = |scene: &Scene, finding| {
        let freeze = scene.ledger().round(Round(0)).and_then(RoundView::freeze_digest).unwrap();
        let said = Recomputation { round: Round(0), freeze, target: node(1).id(), finding };
        let recomputation = scene.signed(&verifier(0), &said);
        let accused = FalseRecomputation { freeze: scene.freeze.clone(), recomputation };
        scene.judge(&Evidence::Recomputation(accused), scene.shelf())
    };
    let total = Finding::Guilty(FindingKind::TotalMismatch);
    let by = |kind| Some((verifier(0).id(), kind));
    assert!(matches!(judge(&right, Finding::Pass), Judgement::NotGuilty(_)));
    assert!(matches!(judge(&wrong, total), Judgement::NotGuilty(_)));
    assert_eq!(convicted(&judge(&wrong, Finding::Pass)), by(FindingKind::FalseAcquittal));
    assert_eq!(convicted(&judge(&right, total)), by(FindingKind::FalseAccusation));
}

#[test]
fn assign_4_a_contribution_is_the_sum_of_its_first_positions() {
    let scene = Scene::honest();
    let manifest = scene.ledger().manifest();
    let leaf = |position| {
        let (commit, state) = (&scene.commit, &scene.state());
        let (witness, arithmetic) = (&mut scene.shelf(), &mut Leaves);
        Recomputing { manifest, commit, state, witness, arithmetic }.leaf(position).unwrap().0
    };
    for leaves in 1..=2 {
        let commit = Commit { leaves, ..scene.commit.clone() };
        let sum = recompute_sum(manifest, &commit, &scene.state(), &mut scene.shelf(), &mut Leaves).unwrap();
        let mut expected = vec![0; sum.q.len()];
        (0..leaves).for_each(|position| {
            expected.iter_mut().zip(leaf(position)).for_each(|(sum, q)| *sum += q);
        });
        assert_eq!(sum.q, expected, "{leaves} leaves");
    }
}

#[test]
fn tol_2_the_beacon_is_the_shown_coin_or_the_signed_request() {
    let scene = Scene::tolerant();
    let manifest = scene.ledger().manifest();
    let request = scene.request().claimed().unwrap();
    let coinless = AuditRequest { coin: None, ..request.clone() };
    let signed = scene.signed(&verifier(0), &coinless);
    let coin = request.coin.as_ref().unwrap().coin;
    for (request, beacon) in [(&request, coin), (&coinless, signed.digest())] {
        let probe = probe(manifest, &signed, request);
        assert_eq!(probe.sketch(&scene.q), Probe::new(manifest, &request.freeze, &beacon).sketch(&scene.q));
    }
    // A table of another kind, and one of another length.
    let exact = Probe::exact(&request.freeze).row(&scene.q, 1);
    let short = TableRow { sketch: Sketch::Projections(List::new(vec![0; 63]).unwrap()), loss: 1 };
    for row in [exact, short] {
        let rows = [row.clone(), row];
        let refused = check_steps(manifest, &Evidence::Audit(scene.transcript(&rows, LEAF)));
        assert_eq!(refused, Err(Reject::Rule("the table's sketches are those of the profile")));
    }
}

#[test]
fn tol_4_a_leaf_convicts_above_four_tolerances_only() {
    let scene = Scene::tolerant();
    let (mut near, mut far) = (0, 0);
    for off in 0..40 {
        // The sum of both leaves is right: what convicts is a leaf.
        let rows = [scene.row(0, off), scene.row(1, -off)];
        let audit = scene.transcript(&rows, LEAF);
        let drawn = scene.drawn(&audit.table) as usize;
        let deviation = scene.probe().deviation(&scene.rows[drawn], &rows[drawn]);
        let judged = convicted(&scene.judge(&Evidence::Audit(audit), scene.shelf()));
        let expected = (deviation > 4.0).then(|| (node(1).id(), FindingKind::LeafMismatch));
        assert_eq!(judged, expected, "{deviation}");
        (near, far) = (near + u32::from(deviation <= 4.0), far + u32::from(deviation > 4.0));
    }
    assert!(near > 2 && far > 2, "{near} near, {far} far");
}

#[test]
fn tol_8_a_verifier_is_held_to_figures_beyond_the_limits() {
    let scene = Scene::tolerant();
    let judge = |off: i32, table: &[TableRow], finding| {
        let drawn = scene.drawn(&scene.table(table));
        let shown = [LeafResult { position: drawn, row: scene.row(drawn, off) }];
        let deviation = scene.probe().deviation(&scene.rows[drawn as usize], &shown[0].row);
        let transcript = scene.transcript_with(table, &shown, finding);
        (deviation, convicted(&scene.judge(&scene.against(transcript), scene.shelf())))
    };
    let by = |kind| Some((verifier(0).id(), kind));
    let close = (0..40).map(|off| judge(off, &scene.rows, Finding::Pass));
    for (deviation, judged) in close {
        let expected = if deviation > 4.0 { by(FindingKind::FalseAcquittal) } else { None };
        assert_eq!(judged, expected, "{deviation}");
    }
    let (_, judged) = judge(0, &scene.rows, LEAF);
    assert_eq!(judged, by(FindingKind::FalseAccusation), "figures that show no wrong leaf");
    let wrong = [scene.row(0, 40), scene.row(1, -40)];
    let (_, judged) = judge(0, &wrong, Finding::Pass);
    assert_eq!(judged, by(FindingKind::FalseAcquittal), "a table that is wrong by its own figures");
    let (_, judged) = judge(0, &wrong, LEAF);
    assert_eq!(judged, None, "the table is wrong");
}
