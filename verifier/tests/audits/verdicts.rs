//! False verdicts convict their verifier; whatever others put beside a true one convicts nobody.

use muster_core::coins::{CoinKind, draw};
use muster_core::messages::audit::{
    AuditRequest, LeafResult, Recomputation, Results, ResultsSeal, Verdict, results_seal,
};
use muster_core::messages::evidence::{FalseRecomputation, FalseVerdict, Transcript};
use muster_core::messages::wire::{Request, Response};
use muster_core::sketch::Sketch;
use muster_roles::steward::{Question, Steward, StewardEffect, StewardInput, StewardSetup};

use super::*;

/// Says always this.
pub(super) struct Says(pub Finding);

impl muster_roles::verifier::audits::Conduct for Says {
    fn says(&self, _: Finding) -> Finding {
        self.0
    }

    fn weighs(&self, _: Judgement, culprit: MemberId) -> Judgement {
        let finding = FindingKind::LeafMismatch;
        Judgement::Guilty { culprit, round: Round(0), finding, detail: String::new() }
    }
}

const ACCUSED: Finding = Finding::Guilty(FindingKind::LeafMismatch);

/// The audit of the first member by a verifier that says what it found, or always the same.
fn audited(conduct: Conduct, says: Option<Finding>) -> (World, Transcript) {
    audited_in(World::new([conduct, Conduct::Honest], manifest(ALWAYS, 0)), says)
}

fn audited_in(mut world: World, says: Option<Finding>) -> (World, Transcript) {
    let audits = world.audits();
    let mut audits = match says {
        Some(finding) => audits.conducted(Arc::new(Says(finding))),
        None => audits,
    };
    world.run(&mut audits);
    let request = world.board.iter().find_map(|notice| match notice {
        Notice::Request(signed) if signed.verify(world.run).unwrap().target == member(11) => {
            Some(signed.digest())
        }
        _ => None,
    });
    let transcript = world.docket.transcript(&world.ledger, &request.unwrap()).expect("a verdict was given");
    (world, transcript)
}

fn judged(world: &mut World, transcript: &Transcript) -> Judgement {
    let admit = world.ledger.member(&member(21)).unwrap().admitted.clone().unwrap();
    let evidence = Evidence::Verdict(FalseVerdict { admit, transcript: transcript.clone() });
    judge_it(world, &evidence)
}

fn judge_it(world: &mut World, evidence: &Evidence) -> Judgement {
    judge(&world.manifest, evidence, &mut world.memory, &mut Exact::new(1, Some(Path::Portable)).unwrap())
}

/// Of what the verifier is found guilty, if of anything.
fn finding(judgement: &Judgement) -> Option<FindingKind> {
    match judgement {
        Judgement::Guilty { culprit, finding, .. } if *culprit == member(21) => Some(*finding),
        Judgement::Guilty { culprit, .. } => panic!("{culprit} is convicted by another one's verdict"),
        _ => None,
    }
}

#[test]
fn true_verdicts_stand() {
    for conduct in [Conduct::Honest, Conduct::FlipsLeaves, Conduct::FlipsTheSum] {
        let (mut world, transcript) = audited(conduct, None);
        let judgement = judged(&mut world, &transcript);
        assert!(matches!(judgement, Judgement::NotGuilty(_)), "{judgement:?}");
        // AUDIT-11: without the contribution it is undecided at worst.
        world.memory.contributions.clear();
        let judgement = judged(&mut world, &transcript);
        assert!(!matches!(judgement, Judgement::Guilty { .. } | Judgement::Malformed(_)), "{judgement:?}");
    }
}

#[test]
fn a_total_that_was_not_to_be_had_makes_no_false_accusation() {
    let mut world = World::new([Conduct::FlipsTheSum, Conduct::Honest], manifest(ALWAYS, 0));
    let kept = std::mem::take(&mut world.memory.contributions);
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts()[0].1, Finding::Guilty(FindingKind::TotalMismatch));
    let request = world.board.iter().find_map(|notice| match notice {
        Notice::Request(signed) => Some(signed.digest()),
        _ => None,
    });
    let transcript = world.docket.transcript(&world.ledger, &request.unwrap()).unwrap();
    assert_eq!(finding(&judged(&mut world, &transcript)), None);
    world.memory.contributions = kept;
    assert_eq!(finding(&judged(&mut world, &transcript)), None);
}

#[test]
fn an_acquittal_of_a_cheat_convicts_both() {
    for conduct in [Conduct::FlipsLeaves, Conduct::FlipsTheSum] {
        let (mut world, transcript) = audited(conduct, Some(Finding::Pass));
        assert_eq!(finding(&judged(&mut world, &transcript)), Some(FindingKind::FalseAcquittal));
        let member_s = judge_it(&mut world, &Evidence::Audit(transcript));
        assert!(
            matches!(member_s, Judgement::Guilty { culprit, .. } if culprit == member(11)),
            "{member_s:?}"
        );
    }
}

#[test]
fn an_accusation_of_the_innocent_convicts_its_author_alone() {
    let (mut world, transcript) = audited(Conduct::Honest, Some(ACCUSED));
    assert_eq!(finding(&judged(&mut world, &transcript)), Some(FindingKind::FalseAccusation));
    let member_s = judge_it(&mut world, &Evidence::Audit(transcript.clone()));
    assert!(matches!(member_s, Judgement::NotGuilty(_)), "{member_s:?}");
    world.memory.contributions.clear();
    assert_eq!(
        finding(&judged(&mut world, &transcript)),
        Some(FindingKind::FalseAccusation),
        "Q can be recomputed"
    );
    // AUDIT-11: without the state nobody is guilty.
    world.memory.state.parameters[0] += 1.0;
    let undecided = judged(&mut world, &transcript);
    assert!(matches!(undecided, Judgement::Undecided(_)), "{undecided:?}");
}

#[test]
fn a_bad_leaf_that_was_not_drawn_is_nobody_s_false_acquittal() {
    let mut passed = 0;
    for nonce in 0..12 {
        let mut manifest = manifest(ALWAYS, 0);
        manifest.nonce = [nonce; 16];
        let world = World::new([Conduct::FlipsOneLeaf(u32::from(nonce % 3)), Conduct::Honest], manifest);
        let (mut world, transcript) = audited_in(world, None);
        passed += usize::from(transcript.verdict.verify(world.run).unwrap().finding == Finding::Pass);
        assert_eq!(finding(&judged(&mut world, &transcript)), None);
        world.memory.contributions.clear();
        assert_eq!(
            finding(&judged(&mut world, &transcript)),
            None,
            "the total says nothing about the drawn leaves"
        );
    }
    assert!(passed > 0, "two of three leaves are drawn");
}

fn flip(sketch: &mut Sketch) {
    let Sketch::Fingerprint(values) = sketch else { panic!("the profile is exact") };
    values[1] ^= 1;
}

/// Signs the verifier's part anew, with other results, total or finding, and lets the member play along.
fn resigned(
    world: &World,
    transcript: &Transcript,
    change: &dyn Fn(&mut Vec<LeafResult>, &mut Sketch),
) -> Transcript {
    let run = world.run;
    let before = transcript.verdict.verify(run).unwrap().into_inner();
    let (mut shown, mut total) = (before.results.to_vec(), before.total.clone());
    change(&mut shown, &mut total);
    let shown = Results::new(shown).unwrap();
    let results = transcript.results.verify(run).unwrap().into_inner();
    let results = id(21).sign(run, &ResultsSeal { seal: results_seal(&before.salt, &shown), ..results });
    let opening = transcript.opening.verify(run).unwrap().into_inner();
    let opening = id(11).sign(run, &TableOpening { results: results.digest(), ..opening });
    let verdict = Verdict { opening: opening.digest(), results: shown, total, ..before };
    let verdict = id(21).sign(run, &verdict);
    Transcript { results, opening, verdict, ..transcript.clone() }
}

/// DUTY-9: figures of a passing verdict that are not what its drawn leaves give, or not of the leaves that its coin draws.
#[test]
fn figures_that_were_not_computed_convict() {
    let (mut world, transcript) = audited(Conduct::Honest, None);
    let same = resigned(&world, &transcript, &|_, _| ());
    assert_eq!(finding(&judged(&mut world, &same)), None);
    type Change<'a> = &'a dyn Fn(&mut Vec<LeafResult>, &mut Sketch);
    let lies: [Change<'_>; 4] = [
        &|results, _| flip(&mut results[0].row.sketch),
        &|results, _| results[1].row.loss += 1,
        &|_, total| flip(total),
        &|results, _| {
            results.pop();
        },
    ];
    for change in lies {
        let lie = resigned(&world, &transcript, change);
        assert_eq!(finding(&judged(&mut world, &lie)), Some(FindingKind::FalseAcquittal));
    }
}

#[test]
fn audit_4_the_leaves_are_drawn_under_the_seal_of_the_table() {
    let (mut world, transcript) = audited(Conduct::Honest, None);
    let verdict = transcript.verdict.verify(world.run).unwrap().into_inner();
    let table = transcript.table.verify(world.run).unwrap().into_inner();
    let commit = world.ledger.round(Round(0)).unwrap().commitment(Slot(0)).unwrap().commit.clone();
    let coin = verdict.coin.verify(&coin_tree(21).terms()).unwrap();
    let drawn = |seal| draw(&coin, &table.freeze, &seal, commit.leaves, world.manifest.audit.leaves);
    let shown: Vec<u32> = verdict.results.iter().map(|result| result.position).collect();
    assert_eq!(shown, drawn(table.seal));
    let others = (0..16).map(|seal| drawn(Digest([seal; 32])));
    assert!(others.into_iter().any(|positions| positions != shown), "another table has another draw");
    // A right result of a leaf that was not drawn convicts all the same.
    let missing = (0..commit.leaves).find(|position| !shown.contains(position)).unwrap();
    let rows = transcript.opening.verify(world.run).unwrap().into_inner().rows;
    let swapped = resigned(&world, &transcript, &|results, _| {
        results[0] = LeafResult { position: missing, row: rows[missing as usize].clone() };
        results.sort_by_key(|result| result.position);
    });
    assert_eq!(finding(&judged(&mut world, &swapped)), Some(FindingKind::FalseAcquittal));
}

#[test]
fn duty_12_a_false_recomputation_convicts_its_author_and_a_true_one_nobody() {
    let guilty = Finding::Guilty(FindingKind::TotalMismatch);
    for (conduct, said, found) in [
        (Conduct::Honest, Finding::Pass, None),
        (Conduct::Honest, guilty, Some(FindingKind::FalseAccusation)),
        (Conduct::HidesAFalseSum, guilty, None),
        (Conduct::HidesAFalseSum, Finding::Pass, Some(FindingKind::FalseAcquittal)),
    ] {
        let mut world = World::new([conduct, Conduct::Honest], manifest(ALWAYS, 0));
        let view = world.ledger.round(Round(0)).unwrap();
        let (record, freeze) = (view.freeze().unwrap().clone(), view.freeze_digest().unwrap());
        let said = Recomputation { round: Round(0), freeze, target: member(11), finding: said };
        let recomputation = id(21).sign(world.run, &said);
        let evidence = Evidence::Recomputation(FalseRecomputation { freeze: record, recomputation });
        assert_eq!(finding(&judge_it(&mut world, &evidence)), found, "{said:?}");
        // AUDIT-11: without the state nobody is guilty.
        world.memory.state.parameters[0] += 1.0;
        let undecided = judge_it(&mut world, &evidence);
        assert!(matches!(undecided, Judgement::Undecided(_)), "{undecided:?}");
    }
}

/// One step of an audit, to be changed before it is signed.
enum Step<'a> {
    Request(&'a mut AuditRequest),
    Table(&'a mut TableSeal),
    Results(&'a mut ResultsSeal),
    Opening(&'a mut TableOpening),
    Verdict(&'a mut Verdict),
}

/// The same audit with one step changed, and each later step signed anew so that it names the one before it.
fn relinked(world: &World, good: &Transcript, change: &dyn Fn(Step)) -> Transcript {
    let run = world.run;
    let mut request = good.request.verify(run).unwrap().into_inner();
    change(Step::Request(&mut request));
    let request = id(21).sign(run, &request);
    let name = request.digest();
    let mut table = TableSeal { request: name, ..good.table.verify(run).unwrap().into_inner() };
    change(Step::Table(&mut table));
    let table = id(11).sign(run, &table);
    let results = good.results.verify(run).unwrap().into_inner();
    let mut results = ResultsSeal { request: name, table: table.digest(), ..results };
    change(Step::Results(&mut results));
    let results = id(21).sign(run, &results);
    let opening = good.opening.verify(run).unwrap().into_inner();
    let mut opening = TableOpening { request: name, results: results.digest(), ..opening };
    change(Step::Opening(&mut opening));
    let opening = id(11).sign(run, &opening);
    let verdict = good.verdict.verify(run).unwrap().into_inner();
    let mut verdict = Verdict { request: name, opening: opening.digest(), ..verdict };
    change(Step::Verdict(&mut verdict));
    let verdict = id(21).sign(run, &verdict);
    Transcript { freeze: good.freeze.clone(), request, table, results, opening, verdict }
}

#[test]
fn audit_10_each_step_names_its_round_and_the_steps_before_it() {
    let (mut world, good) = audited(Conduct::FlipsLeaves, None);
    let guilty = |judgement: &Judgement| matches!(judgement, Judgement::Guilty { .. });
    let whole = Evidence::Audit(relinked(&world, &good, &|_| ()));
    assert!(guilty(&judge_it(&mut world, &whole)));
    type Change = (&'static str, fn(Step));
    macro_rules! change {
        ($what:literal, $step:ident.$($field:ident).+ = $value:expr) => {
            ($what, |step| if let Step::$step(said) = step { said.$($field).+ = $value })
        };
    }
    let changes: &[Change] = &[
        change!("a request of another round", Request.round = Round(1)),
        change!("a request over another freeze", Request.freeze = Digest([9; 32])),
        ("a request with a coin of another round", |step| {
            if let Step::Request(said) = step {
                said.coin.iter_mut().for_each(|coin| coin.round = Round(1));
            }
        }),
        ("a request with a leaf coin", |step| {
            if let Step::Request(said) = step {
                said.coin.iter_mut().for_each(|coin| coin.kind = CoinKind::Leaf);
            }
        }),
        change!("a table for another request", Table.request = Digest([9; 32])),
        change!("a table of another round", Table.round = Round(1)),
        change!("a table over another freeze", Table.freeze = Digest([9; 32])),
        change!("a table of another contribution", Table.root = Digest([9; 32])),
        change!("another table's seal", Table.seal = Digest([9; 32])),
        change!("results for another request", Results.request = Digest([9; 32])),
        change!("results for another table", Results.table = Digest([9; 32])),
        change!("other results' seal", Results.seal = Digest([9; 32])),
        change!("an opening for another request", Opening.request = Digest([9; 32])),
        change!("an opening for other results", Opening.results = Digest([9; 32])),
        // AUDIT-6: an open table fits its seal, and has a row a leaf.
        change!("an opening with another salt", Opening.salt = [9; 32]),
        change!("an opening without rows", Opening.rows = Rows::default()),
        change!("a verdict for another request", Verdict.request = Digest([9; 32])),
        change!("a verdict for another opening", Verdict.opening = Digest([9; 32])),
        change!("a verdict with a coin of another round", Verdict.coin.round = Round(1)),
        change!("a verdict with the coin of another slot", Verdict.coin.k = 7),
        change!("a verdict with a node coin", Verdict.coin.kind = CoinKind::Node),
        change!("a verdict with another salt", Verdict.salt = [9; 32]),
    ];
    for (what, change) in changes {
        let evidence = Evidence::Audit(relinked(&world, &good, change));
        let judgement = judge_it(&mut world, &evidence);
        assert!(matches!(judgement, Judgement::Malformed(_)), "{what}: {judgement:?}");
    }
}

/// What a member, a steward without conscience or another verifier may put beside what the verifier signed.
#[test]
fn a_verifier_is_not_framed() {
    let (mut world, good) = audited(Conduct::Honest, None);
    let run = world.run;
    let opening = good.opening.verify(run).unwrap().into_inner();
    let table = good.table.verify(run).unwrap().into_inner();
    let mut rows = opening.rows.to_vec();
    rows[0].loss += 1;
    let rows = Rows::new(rows).unwrap();
    let reopened = |opening: TableOpening| id(11).sign(run, &opening);
    let retabled = |table: TableSeal| id(11).sign(run, &table);
    let other_table = retabled(TableSeal { seal: table_seal(&[1; 32], &rows), ..table.clone() });
    let framed: Vec<(&str, Transcript)> = vec![
        (
            "other rows",
            Transcript {
                opening: reopened(TableOpening { rows: rows.clone(), ..opening.clone() }),
                ..good.clone()
            },
        ),
        (
            "another salt",
            Transcript {
                opening: reopened(TableOpening { salt: [1; 32], ..opening.clone() }),
                ..good.clone()
            },
        ),
        ("another table", Transcript { table: other_table.clone(), ..good.clone() }),
        (
            "another table and its opening",
            Transcript {
                table: other_table,
                opening: reopened(TableOpening { salt: [1; 32], rows, ..opening.clone() }),
                ..good.clone()
            },
        ),
        (
            "a table of another round",
            Transcript { table: retabled(TableSeal { round: Round(1), ..table.clone() }), ..good.clone() },
        ),
        (
            "a table of another root",
            Transcript { table: retabled(TableSeal { root: Digest([1; 32]), ..table }), ..good.clone() },
        ),
    ];
    for (what, transcript) in framed {
        let judgement = judged(&mut world, &transcript);
        assert!(matches!(judgement, Judgement::Malformed(_)), "{what}: {judgement:?}");
    }
    another_freeze_or_admission(&mut world, &good);
}

fn another_freeze_or_admission(world: &mut World, good: &Transcript) {
    let run = world.run;
    let mut record = good.freeze.verify(run).unwrap().into_inner();
    record.height = record.height.next();
    let moved = Transcript { freeze: world.steward.sign(run, &record), ..good.clone() };
    let judgement = judged(world, &moved);
    assert!(matches!(judgement, Judgement::Malformed(_)), "another freeze: {judgement:?}");
    // A verifier may have signed other enrolments, with other coins.
    let (role, secret) = (Role::Verifier, InvitationSecret::new([9; 32]));
    let invitation = Invitation { role, uses: 1, expires: 0, key: secret.key(), founder: false };
    let invitation = secret.present(run, id(1).sign(run, &invitation), id(21).id());
    let coins = Some(CoinTree::new([7; 32], Round(0), 8, 8).unwrap().terms());
    let enrol = id(21).sign(
        run,
        &Enrol {
            invitation: Some(invitation),
            addresses: Default::default(),
            coins,
            name: Default::default(),
            engagement: Default::default(),
        },
    );
    let admit = world.ledger.record(Body::Admit(enrol));
    for signer in [2, 11] {
        let admit = id(signer).sign(run, &admit);
        let evidence = Evidence::Verdict(FalseVerdict { admit, transcript: good.clone() });
        let judgement = judge_it(world, &evidence);
        assert!(matches!(judgement, Judgement::Malformed(_)), "another admission: {judgement:?}");
    }
}

/// A cheat, and two verifiers of which the first one passes it whatever it finds.
fn acquitted(cheat: Conduct) -> (World, [Audits; 2]) {
    let worlds = (0..64).map(|nonce| {
        let mut manifest = manifest(ALWAYS, 0);
        manifest.nonce = [nonce; 16];
        World::shared([cheat, Conduct::Honest], manifest, 2)
    });
    let world = worlds.into_iter().find(|world| world.inspector(0) == member(21)).unwrap();
    let all = [world.audits_of(21).conducted(Arc::new(Says(Finding::Pass))), world.audits_of(22)];
    (world, all)
}

/// DUTY-8: a member that shows its integers once and no second time has another one blamed the second time.
#[test]
fn both_paths_of_a_recheck_judge_by_the_same_integers() {
    let (mut world, mut all) = acquitted(Conduct::FlipsTheSum);
    all.iter_mut().for_each(|audits| audits.take(&world.ledger, &[]).unwrap());
    let rechecks = |audits: &Audits| {
        audits.next_message(&|_| true).is_none()
            && audits.next_work(&|_| true).is_some_and(|work| {
                matches!(work.kind, WorkKind::Recheck(_)) && work.subject.commit.slot == Slot(0)
            })
    };
    // Looked at before each single step: the second verifier may come to its recheck in its very next one.
    while !rechecks(&all[1]) {
        let more = world.step_among(&mut all, 0).unwrap();
        assert!(rechecks(&all[1]) || world.step_among(&mut all, 1).unwrap() || more);
    }
    let work = all[1].next_work(&|_| true).unwrap();
    let done = world.worker.perform(&work, &mut world.memory);
    assert!(matches!(done, Done::Suspicion(culprit, Some(_)) if culprit == member(21)), "{done:?}");
    all[1].worked(&work, done).unwrap();
    let again = all[1].next_work(&|_| true).unwrap();
    assert!(matches!(again.kind, WorkKind::SecondRecheck(_, Some(_))), "{again:?}");
}

#[test]
fn a_recheck_finds_a_false_acquittal() {
    let (mut world, mut all) = acquitted(Conduct::FlipsLeaves);
    world.run_all(&mut all);
    assert!(world.verdicts().iter().all(|(_, finding)| *finding == Finding::Pass));
    let found: Vec<_> = world.judged();
    assert_eq!(found, [(member(21), FindingKind::FalseAcquittal)]);
    assert!(world.worked.contains(&"second recheck of slot 0".to_owned()), "{:?}", world.worked);
}

/// DUTY-10: the verifier of an audit would otherwise have it examined again and again, signed anew each time.
#[test]
fn duty_10_an_audit_that_is_not_the_one_on_the_board_is_not_examined() {
    let (world, posted) = audited(Conduct::FlipsLeaves, None);
    let anew = resigned(&world, &posted, &|_, total| flip(total));
    let mut steward = Steward::new(StewardSetup {
        ledger: world.ledger.clone(),
        identity: Arc::new(id(2)),
        roots: world.ledger.state().clone(),
        states: Default::default(),
        bans: Vec::new(),
        kept: world.board.iter().cloned().map(Request::Notice).collect(),
    });
    let mut accuse = |transcript: &Transcript| {
        let request = Box::new(Request::Accuse(Evidence::Audit(transcript.clone())));
        let (question, from) = (Question(1), member(21));
        steward.handle(0, StewardInput::Asked { question, from, request, date: 0 });
        let answers = std::iter::from_fn(|| steward.poll_effect()).filter_map(|effect| match effect {
            StewardEffect::Answer(_, answer) => Some(answer),
            _ => None,
        });
        answers.collect::<Vec<_>>()
    };
    assert_eq!(accuse(&posted), [Response::Done]);
    let refused = accuse(&anew);
    let [Response::Refused(why)] = refused.as_slice() else { panic!("{refused:?}") };
    assert!(why.contains("not the one on the board"), "{why:?}");
}
