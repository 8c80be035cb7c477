//! Audits where honest leaves differ: who is near, who leans, who is wrong, and what judges make of verifiers.

use muster_core::messages::audit::{Jury, LeafResult, Opinion, Results};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Idle};
use muster_core::sign::Signed;
use muster_core::sketch::Sketch;

use super::*;

/// A run of profile f32 whose groups may deviate by this much.
fn tolerant(epsilon: f32, leaves: u32) -> Manifest {
    let real = |value: f32| Real::new(value).unwrap();
    let mut manifest = manifest(ALWAYS, 0);
    manifest.profile = Profile::F32;
    manifest.tolerance =
        Tolerance { groups: muster_core::codec::List::new(vec![real(epsilon)]).unwrap(), loss: real(1e-5) };
    manifest.training.leaves = leaves;
    manifest.check().unwrap();
    manifest
}

#[test]
fn leaves_that_are_near_pass() {
    let mut world = World::new([Conduct::Honest, Conduct::Adds(30)], tolerant(2e-4, 6));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), Finding::Pass)]);
    assert!(world.accusations.is_empty() && !world.worked.iter().any(|work| work.starts_with("everything")));
}

/// TOL-4: a leaf above 4 is a mismatch.
#[test]
fn leaves_that_are_far_convict() {
    for conduct in [Conduct::FlipsLeaves, Conduct::Adds(700)] {
        let mut world = World::new([Conduct::Honest, conduct], tolerant(1e-4, 6));
        let mut audits = world.audits();
        world.run(&mut audits);
        assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
    }
    let mut world = World::new([Conduct::FlipsTheSum, Conduct::Honest], tolerant(2e-4, 6));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(11), FindingKind::SumMismatch)]);
}

/// TOL-4: above 1 and not above 4.
#[test]
fn a_suspect_leaf_has_all_recomputed_and_convicts_nobody() {
    let mut world = World::new([Conduct::Honest, Conduct::Adds(140)], tolerant(2e-4, 6));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), Finding::Pass)]);
    assert!(world.worked.contains(&"everything of slot 1".to_owned()), "{:?}", world.worked);
    assert!(world.accusations.is_empty() && audits.unfinished_rounds().is_empty());
}

/// TOL-6: each leaf is within what convicts, their sum is not.
#[test]
fn who_leans_the_same_way_in_every_leaf_is_found_out() {
    let mut world = World::new([Conduct::Honest, Conduct::Adds(140)], tolerant(2e-4, 48));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(12), FindingKind::TotalMismatch)]);
}

#[test]
fn silence_is_looked_into_by_the_committed_integers() {
    for (conduct, guilty) in [(Conduct::HidesAFalseSum, true), (Conduct::Sleeps, false)] {
        let mut world = World::new([conduct, Conduct::Honest], tolerant(2e-4, 6));
        let mut audits = world.audits();
        world.run(&mut audits);
        let silences = world.docket.silences(1000, &world.ledger);
        let events: Vec<Event> = silences.into_iter().map(|body| world.seal(body)).collect();
        audits.take(&world.ledger, &events).unwrap();
        world.run(&mut audits);
        let expected = if guilty { vec![(member(11), FindingKind::TotalMismatch)] } else { Vec::new() };
        assert_eq!(world.judged(), expected);
    }
    let mut world = World::new([Conduct::HidesAFalseSum, Conduct::Honest], tolerant(2e-4, 6));
    let mut audits = world.audits();
    world.run(&mut audits);
    let events =
        world.docket.silences(1000, &world.ledger).into_iter().map(|body| world.seal(body)).collect();
    let events: Vec<Event> = events;
    world.memory.contributions.clear();
    audits.take(&world.ledger, &events).unwrap();
    world.run(&mut audits);
    assert!(world.accusations.is_empty(), "without the integers nothing follows");
    assert_eq!(audits.tally().undecided, 1);
}

/// What the drawn jurors say of a case.
fn opinions(world: &mut World, all: &mut [Audits], evidence: &Evidence) -> Vec<Signed<Opinion>> {
    let charge = [Event::Notice(Box::new(Notice::Charge(evidence.clone())))];
    all.iter_mut().for_each(|audits| audits.take(&world.ledger, &charge).unwrap());
    world.run_all(all);
    let said = world.board.iter().filter_map(|notice| match notice {
        Notice::Opinion(signed) => Some(signed.clone()),
        _ => None,
    });
    said.collect()
}

/// A run with a false leaf and five verifiers, one of which accuses; the others' opinions.
fn tried() -> (World, MemberId, Evidence, Vec<Signed<Opinion>>) {
    let conducts = [Conduct::Honest, Conduct::FlipsLeaves];
    let mut world = World::shared(conducts, tolerant(2e-4, 6), 5);
    let mut all: Vec<Audits> = (21..26).map(|number| world.audits_of(number)).collect();
    world.run_all(&mut all);
    let (accuser, evidence) = (world.inspector(1), world.accusations[0].clone());
    let said = opinions(&mut world, &mut all, &evidence);
    (world, accuser, evidence, said)
}

#[test]
fn jurors_recompute_and_say_what_they_find() {
    let (world, accuser, evidence, said) = tried();
    let jurors = world.ledger.round(Round(0)).unwrap().jury(&member(12), &accuser);
    assert_eq!(jurors.len(), 4);
    let authors: Vec<MemberId> = said.iter().map(Signed::claimed_signer).collect();
    assert!(jurors.iter().all(|juror| authors.contains(juror)) && authors.len() == 4, "{authors:?}");
    assert!(said.iter().all(|signed| signed.verify(world.run).unwrap().guilty));
    assert!(said.iter().all(|signed| signed.verify(world.run).unwrap().evidence == evidence.digest()));
}

/// TOL-12: who has one part delivered to nobody cannot be compared with its root, but its leaves can.
#[test]
fn a_wrong_leaf_convicts_without_the_integers() {
    let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], tolerant(2e-4, 6));
    world.memory.contributions.clear();
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
}

#[test]
fn who_withholds_its_integers_is_silent_and_no_verifier_idle() {
    let mut world = World::shared([Conduct::Honest, Conduct::Honest], tolerant(2e-4, 6), 2);
    let kept = std::mem::take(&mut world.memory.contributions);
    let mut all = [world.audits_of(21), world.audits_of(22)];
    world.run_all(&mut all);
    assert_eq!(world.board.iter().filter(|notice| matches!(notice, Notice::Withheld(_))).count(), 2);
    let (docket, ledger) = (&mut world.docket, &world.ledger);
    assert!(docket.idles(0, ledger).is_empty() && docket.idles(10_000, ledger).is_empty());
    let silences = docket.silences(1000, ledger);
    assert_eq!(silences.len(), 2);
    silences.into_iter().for_each(|body| world.seal_to(&mut all, body));
    world.run_all(&mut all);
    assert!(world.accusations.is_empty());
    // The steward has had them at last: both are back, and what they committed to is judged.
    world.memory.contributions = kept;
    for number in [11, 12] {
        for (request, back) in world.docket.obtained(&world.ledger, Round(0), &member(number)) {
            world.seal_to(&mut all, back.unwrap());
            let events = [Event::Notice(Box::new(Notice::Obtained(request)))];
            all.iter_mut().for_each(|audits| audits.take(&world.ledger, &events).unwrap());
        }
        assert_eq!(world.ledger.member(&member(number)).unwrap().standing, Standing::Active);
    }
    assert!(world.docket.wanted().is_empty());
    world.run_all(&mut all);
    assert!(world.accusations.is_empty());
    assert_eq!(all.iter().map(|audits| audits.tally().passed).sum::<u64>(), 2);
}

#[test]
fn what_is_obtained_in_time_is_judged_as_ever() {
    let mut world = World::new([Conduct::Honest, Conduct::HidesAFalseSum], tolerant(2e-4, 6));
    let kept = std::mem::take(&mut world.memory.contributions);
    let mut audits = world.audits();
    world.run(&mut audits);
    let wanted: Vec<_> = world.docket.wanted().into_iter().collect();
    world.memory.contributions = kept;
    for (round, member) in wanted {
        for (request, back) in world.docket.obtained(&world.ledger, round, &member) {
            assert!(back.is_none());
            let event = Event::Notice(Box::new(Notice::Obtained(request)));
            audits.take(&world.ledger, &[event]).unwrap();
        }
    }
    world.run(&mut audits);
    assert_eq!(audits.tally().passed, 1);
}

/// Silent about one round, a member has all that it was asked recomputed; what it answers all the same is judged.
#[test]
fn a_late_answer_is_judged_though_nothing_could_be_recomputed() {
    let mut world = World::shared([Conduct::Sleeps, Conduct::Adds(1)], tolerant(2e-4, 6), 2);
    let mut all = [world.audits_of(21), world.audits_of(22)];
    world.memory.contributions.clear();
    world.run_all(&mut all);
    let silences = world.docket.silences(1000, &world.ledger);
    silences.into_iter().for_each(|body| world.seal_to(&mut all, body));
    world.run_all(&mut all);
    let over = all.iter().flat_map(Audits::asked).filter(|(_, over)| *over).count();
    assert_eq!(over, 0, "each of them may be answered yet");
}

/// What is waited for comes before what a member can make long.
#[test]
fn an_answer_that_is_due_is_not_behind_a_whole_contribution() {
    let mut world = World::new([Conduct::Sleeps, Conduct::Honest], tolerant(2e-4, 6));
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    let mut work = None;
    while work.is_none() {
        let message = audits.next_message(&|_| true).unwrap();
        audits.told(&message);
        let (Message::Notice(_, notice) | Message::Say(notice)) = message else { panic!("nobody accuses") };
        let events = world.post(*notice);
        audits.take(&world.ledger, &events).unwrap();
        work = audits.next_work(&|_| true);
    }
    audits.record(&world.ledger, &world.silence(0));
    let work = audits.next_work(&|_| true).unwrap();
    assert!(matches!(work.kind, WorkKind::Leaves(_)), "{work:?}");
}

/// LEDGER-22: before the Outcome nobody can be drawn, which is not the same as nobody being left.
#[test]
fn nobody_is_banned_for_a_leaf_of_a_round_that_is_open() {
    let (world, accuser, evidence, _) = tried();
    let open = |ledger: &&Ledger| {
        ledger.round(Round(0)).is_some_and(|view| view.freeze().is_some() && view.results().is_none())
    };
    let mut ledger = world.past.iter().find(open).unwrap().clone();
    let ban = Ban {
        culprit: member(12),
        effective: ledger.first_round_without(),
        round: Round(0),
        finding: FindingKind::LeafMismatch,
        evidence: evidence.digest(),
        accuser,
        jury: Jury::default(),
    };
    let record = world.steward.sign(world.run, &ledger.record(Body::Ban(ban)));
    assert!(ledger.apply(&record).is_err());
}

#[test]
fn audits_of_a_forgotten_round_take_no_room() {
    let mut world = World::new([Conduct::Honest, Conduct::Sleeps], tolerant(2e-4, 6));
    let mut audits = world.audits();
    world.run(&mut audits);
    let none = Ledger::new(world.manifest.clone());
    world.docket.idles(0, &none);
    assert!(world.docket.silences(u64::MAX, &none).is_empty());
    assert_eq!(world.docket.open_cases(&none).count(), 0);
}

/// Ten verifiers, of which seven are jurors; two of them go before the case is decided.
#[test]
fn who_is_drawn_when_a_juror_goes_recomputes_as_well() {
    let conducts = [Conduct::Honest, Conduct::FlipsLeaves];
    let mut manifest = tolerant(2e-4, 6);
    manifest.admission.most_members = 12;
    let mut world = World::shared(conducts, manifest, 10);
    let mut all: Vec<Audits> = (21..31).map(|number| world.audits_of(number)).collect();
    world.run_all(&mut all);
    let (accuser, evidence) = (world.inspector(1), world.accusations[0].clone());
    let jurors = |world: &World| world.ledger.round(Round(0)).unwrap().jury(&member(12), &accuser);
    let said = opinions(&mut world, &mut all, &evidence);
    let authors: Vec<MemberId> = said.iter().map(Signed::claimed_signer).collect();
    let first = jurors(&world);
    assert_eq!(first.len(), 7);
    assert!(first.iter().all(|juror| authors.contains(juror)), "whoever the accuser is");
    assert!(authors.len() <= 8, "nobody else recomputes");
    for verifier in first[..2].iter().copied() {
        world.seal_to(&mut all, Body::Idle(Idle { verifier, round: Round(0) }));
    }
    let next = jurors(&world);
    assert_eq!(next.iter().filter(|juror| !first.contains(juror)).count(), 2);
    world.run_all(&mut all);
    let authors: Vec<MemberId> = world
        .board
        .iter()
        .filter_map(|notice| match notice {
            Notice::Opinion(signed) => Some(signed.claimed_signer()),
            _ => None,
        })
        .collect();
    assert!(next.iter().all(|juror| authors.contains(juror)));
}

/// Without the state, or as evidence of a run with another tolerance.
#[test]
fn jurors_leave_unsaid_what_they_cannot_decide() {
    let mut world = World::shared([Conduct::Honest, Conduct::Adds(30)], tolerant(1e-6, 6), 5);
    let mut all: Vec<Audits> = (21..26).map(|number| world.audits_of(number)).collect();
    world.run_all(&mut all);
    let evidence = world.accusations[0].clone();
    let mut manifest = (*world.manifest).clone();
    manifest.tolerance = tolerant(2e-4, 6).tolerance;
    let Judgement::Malformed(_) =
        judge(&manifest, &evidence, &mut world.memory, &mut Exact::new(1, None).unwrap())
    else {
        panic!("evidence is bound to the run's tolerance")
    };
    world.memory.state.parameters[0] += 1.0;
    assert!(opinions(&mut world, &mut all, &evidence).is_empty(), "what cannot be decided is left unsaid");
}

#[test]
fn ledger_22_a_ban_takes_five_of_seven_jurors() {
    let (mut world, accuser, evidence, said) = tried();
    let (run, name) = (world.run, evidence.digest());
    let ban = |jury: Vec<Signed<Opinion>>| {
        let jury = Jury::new(jury).unwrap();
        let finding = FindingKind::LeafMismatch;
        let effective = world.ledger.first_round_without();
        Ban { culprit: member(12), effective, round: Round(0), finding, evidence: name, accuser, jury }
    };
    let refused = |ban: Ban| {
        let record = world.ledger.record(Body::Ban(ban));
        let signed = world.steward.sign(run, &record);
        world.ledger.clone().apply(&signed).is_err()
    };
    let word = |secret: u8, evidence, guilty| id(secret).sign(run, &Opinion { evidence, guilty });
    let juror = (21..26).find(|secret| member(*secret) == said[0].claimed_signer()).unwrap();
    let own = (21..26).find(|secret| member(*secret) == accuser).unwrap();
    let but_one = said[1..].to_vec();
    let with = |one: Signed<Opinion>| [vec![one], but_one[1..].to_vec()].concat();
    // TOL-9: no leaf bans by one machine's word; what sums decide needs no other.
    assert!(refused(ban(Vec::new())), "nobody else has recomputed it");
    assert!(refused(ban(but_one[1..].to_vec())), "two of four");
    assert!(refused(ban([but_one[1..].to_vec(), vec![said[3].clone()]].concat())), "one of them twice");
    assert!(refused(ban(with(word(juror, name, false)))), "one finds nothing");
    assert!(refused(ban(with(word(juror, Digest([1; 32]), true)))), "one speaks of something else");
    assert!(refused(ban(with(word(own, name, true)))), "the accuser is no juror");
    assert!(refused(ban(with(word(11, name, true)))), "a node is no juror");
    assert!(!refused(ban(but_one.clone())), "three of four");
    let messages = Ban { finding: FindingKind::SumMismatch, ..ban(but_one) };
    assert!(refused(messages), "what sums decide has no jury");
    let sum = Ban { finding: FindingKind::SumMismatch, ..ban(Vec::new()) };
    assert!(!refused(sum));
    let ban = ban(said.clone());
    world.seal(Body::Ban(ban));
    assert_eq!(world.ledger.member(&member(12)).unwrap().standing, Standing::Banned);
}

/// Figures that a hostile verifier puts between what two honest machines compute: one path finds its author guilty, the
/// second one this member, or nobody.
fn rechecked_otherwise(second_culprit: Option<MemberId>) {
    let mut world = World::shared([Conduct::Honest, Conduct::Honest], tolerant(2e-4, 6), 2);
    let mut all = [world.audits_of(21), world.audits_of(22)];
    all.iter_mut().for_each(|audits| audits.take(&world.ledger, &[]).unwrap());
    let (index, work) = loop {
        // Whatever else is its own to say it has said by then.
        let silent = |audits: &&Audits| audits.next_message(&|_| true).is_none();
        let mut works = all.iter().enumerate().filter(|(_, audits)| silent(audits));
        let recheck = works.find_map(|(index, audits)| Some((index, audits.next_work(&|_| true)?)));
        match recheck.filter(|(_, work)| matches!(work.kind, WorkKind::Recheck(..))) {
            Some(found) => break found,
            None => assert!((0..2).any(|index| world.step_among(&mut all, index).unwrap())),
        }
    };
    let culprit = world.inspector(0);
    let finding = FindingKind::FalseAcquittal;
    let guilty = |culprit| Judgement::Guilty { culprit, round: Round(0), finding, detail: String::new() };
    all[index].worked(&work, Done::Suspicion(culprit, None)).unwrap();
    let second = all[index].next_work(&|_| true).unwrap();
    assert!(matches!(second.kind, WorkKind::SecondRecheck(..)));
    let second_word = second_culprit.map_or(Judgement::NotGuilty("within the limit".into()), guilty);
    all[index].worked(&second, Done::Opinion(second_word)).unwrap();
    let said = all[index].next_message(&|_| true);
    assert!(said.is_none(), "neither contested nor confirmed: {said:?}");
    assert!(world.accusations.is_empty());
}

/// TOL-8: between the two limits nobody is convicted.
#[test]
fn a_verdict_too_near_to_the_limit_stops_no_rechecker() {
    rechecked_otherwise(None);
}

/// Nobody is accused on the word of one code path, the member no more than its verifier.
#[test]
fn two_code_paths_that_blame_different_ones_accuse_nobody() {
    rechecked_otherwise(Some(member(11)));
}

/// Figures half-way between truth and table are within four tolerances of both; the table is not of the truth.
#[test]
fn a_verifier_that_meets_a_cheat_half_way_saves_neither_of_them_from_a_recheck() {
    let worlds = (0..64).map(|nonce| {
        let mut manifest = tolerant(2e-4, 6);
        manifest.nonce = [nonce; 16];
        World::shared([Conduct::Honest, Conduct::Adds(700)], manifest, 2)
    });
    let mut world = worlds.into_iter().find(|world| world.inspector(1) == member(21)).unwrap();
    let friend = world.audits_of(21).conducted(Arc::new(super::verdicts::Says(Finding::Pass)));
    let mut all = [friend, world.audits_of(22)];
    all.iter_mut().for_each(|audits| audits.take(&world.ledger, &[]).unwrap());
    loop {
        let mut more = false;
        for index in 0..2 {
            let silent = all[index].next_message(&|_| true).is_none();
            let work = all[index]
                .next_work(&|_| true)
                .filter(|work| index == 0 && silent && work.subject.commit.slot == Slot(1));
            match work.filter(|work| matches!(work.kind, WorkKind::Leaves(_))) {
                Some(work) => {
                    let Done::Leaves(results) = world.worker.perform(&work, &mut world.memory) else {
                        panic!()
                    };
                    let done = half_way(&world.nodes[1], results.into_inner());
                    all[0].worked(&work, Done::Leaves(Results::new(done).unwrap())).unwrap();
                    more = true;
                }
                None => more |= world.step_among(&mut all, index).unwrap(),
            }
        }
        if !more {
            break;
        }
    }
    assert!(world.verdicts().contains(&(member(12), Finding::Pass)), "{:?}", world.verdicts());
    let found = world.judged();
    assert!(found.contains(&(member(12), FindingKind::LeafMismatch)), "{found:?}");
    assert!(found.iter().all(|(culprit, _)| *culprit == member(12)), "{found:?}");
}

/// Results as far from what is true as from what a node has sealed.
fn half_way(node: &Node, mut results: Vec<LeafResult>) -> Vec<LeafResult> {
    let (_, rows) = node.sealed.values().next().unwrap();
    for result in &mut results {
        let (Sketch::Projections(own), Sketch::Projections(sealed)) =
            (&result.row.sketch, &rows[result.position as usize].sketch)
        else {
            panic!()
        };
        let middle = own.iter().zip(sealed.iter()).map(|(own, sealed)| (own + sealed) / 2).collect();
        result.row.sketch = Sketch::Projections(muster_core::codec::List::new(middle).unwrap());
    }
    results
}
