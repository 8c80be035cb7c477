//! Rows of experts in virtual time: who takes them up, what waits for audits, and what poison in a few places is worth.

use std::collections::{BTreeMap, BTreeSet};

use e2e::harm::capture;
use e2e::parallel::in_parallel;
use e2e::sim::{Behaviour, Experts, Plan, Player, Report, Sim, cast};
use muster_core::grid::power_of_two;
use muster_core::ids::{MemberId, Round, Row, ShardId};
use muster_core::layout::Layout;
use muster_core::ledger::Stage;
use muster_core::manifest::{Family, Manifest, Rule};
use muster_core::messages::record::{Body, Outcome};
use muster_core::state::State;

const HOUR: u64 = 3_600_000;

/// Rows that come to be with the third update, of a small model.
fn plan(seed: u64, rounds: u32, players: Vec<Player>, rows: u16) -> Plan {
    let change = |manifest: &mut Manifest| {
        (manifest.model.width, manifest.model.sequence) = (8, 16);
        (manifest.retention.contributions, manifest.retention.states) = (8, 8);
    };
    let plan = Plan::new(seed, rounds, players);
    Plan { verifiers: 2, change, experts: Some(Experts::new(rows)), ..plan }
}

fn finish(plan: Plan) -> Sim {
    let seed = plan.seed;
    let mut sim = Sim::new(plan);
    sim.run(HOUR);
    assert_eq!(sim.ledger().stage(), Stage::Closed, "seed {seed}: the run did not end by {}", sim.now());
    assert!(sim.heads().iter().all(|head| *head == sim.ledger().head()), "seed {seed}: members disagree");
    sim
}

fn outcomes(sim: &Sim) -> Vec<Outcome> {
    sim.records()
        .filter_map(|record| if let Body::Outcome(outcome) = record.body { Some(outcome) } else { None })
        .collect()
}

/// Who says that it is ready, for which row, in order.
fn ready(sim: &Sim) -> Vec<(MemberId, Row)> {
    let run = sim.ledger().run();
    let ready = sim.records().filter_map(|record| {
        let Body::Ready(signed) = &record.body else { return None };
        let ready = signed.verify(run).expect("a sealed word is good");
        Some((ready.author(), ready.row))
    });
    ready.collect()
}

#[test]
fn latecomers_take_up_the_rows_that_are_drawn_for_them() {
    for seed in 0..4 {
        let mut players = vec![Player::honest(); 8];
        (players[6].joins, players[7].joins) = (Some(Round(6)), Some(Round(7)));
        let sim = finish(plan(seed, 16, players, 3));
        let late: BTreeMap<MemberId, Row> = ready(&sim).into_iter().collect();
        assert_eq!(late.len(), 2, "seed {seed}: {late:?}");
        for number in [6, 7] {
            let (id, holding) =
                (sim.id(number), sim.ledger().member(&sim.id(number)).expect("it came").holding);
            assert!(holding.is_some_and(|holding| holding.ready && holding.row == late[&id]), "seed {seed}");
            let seats = outcomes(&sim).into_iter().flat_map(|outcome| outcome.seats.to_vec());
            let rows: BTreeSet<Row> = seats.filter(|seat| seat.member == id).map(|seat| seat.row).collect();
            assert_eq!(rows, BTreeSet::from([late[&id]]), "seed {seed}: its seats are in its row");
        }
    }
}

/// ROW-7: nobody else comes, and of eight nodes two or three are in each row.
#[test]
fn a_row_that_has_lost_its_holders_is_taken_up_by_another_node() {
    for seed in 0..4 {
        let mut probe = Sim::new(plan(seed, 20, vec![Player::honest(); 8], 3));
        probe.run(HOUR);
        let dealt =
            |number: usize| probe.ledger().member(&probe.id(number)).and_then(|member| member.holding);
        let lost = Row(1);
        let mut players = vec![Player::honest(); 8];
        let holders: Vec<usize> =
            (0..8).filter(|number| dealt(*number).is_some_and(|holding| holding.row == lost)).collect();
        for number in &holders {
            players[*number] = Player::behaving(Behaviour::Dies(Round(6), Stage::Computing));
        }
        let sim = finish(plan(seed, 20, players, 3));
        let moved: Vec<(MemberId, Row)> = ready(&sim).into_iter().filter(|(_, row)| *row == lost).collect();
        assert!(!moved.is_empty(), "seed {seed}: somebody moves to row {lost}");
        let last = outcomes(&sim).into_iter().rev().find(|outcome| !outcome.seats.is_empty());
        let last = last.expect("rounds that open others");
        assert!(last.seats.iter().any(|seat| seat.row == lost), "seed {seed}: it has seats again");
        assert!(sim.report().convictions.is_empty() && sim.report().idled.is_empty(), "seed {seed}");
    }
}

/// Six nodes on three rows, of which one turns its sums around wherever a row has two: nothing of it is applied.
#[test]
fn a_held_row_applies_what_has_passed() {
    let attacks = ["pair".parse().expect("an attack")];
    let reports: Vec<Report> =
        (0..4).map(|seed| Sim::new(plan(seed, 20, cast(6, &attacks, Round(4), seed), 3)).finish()).collect();
    for report in &reports {
        assert_eq!((report.convictions.len(), report.false_bans()), (1, 0));
        assert!(report.late_steps > 0, "what has passed is applied");
    }
}

/// The attack pass-row: two verifiers in league pass what they inspect of the held rows; each pass of theirs is a verdict.
/// Of 480, in 240 seeds, 111 were banned (116 before messages of the ledger changed): a rate of 0.23 ± 0.02. Over the 48 seeds here it
/// varies by 0.04, so that the bar, a sixth of them, tells a rate that has fallen by half from chance.
#[test]
fn who_passes_the_poison_of_a_held_row_is_banned_with_its_author() {
    const SEEDS: u64 = 48;
    let attacks = ["pair".parse().expect("an attack")];
    let banned = in_parallel(&(0..SEEDS).collect::<Vec<u64>>(), |seed| {
        let plan = plan(*seed, 40, cast(6, &attacks, Round(4), *seed), 3);
        let change = |manifest: &mut Manifest| {
            (manifest.model.width, manifest.model.sequence) = (8, 16);
            (manifest.retention.contributions, manifest.retention.states) = (8, 8);
            manifest.audit.recheck_ppm = 1_000_000;
        };
        let report = Sim::new(Plan { verifiers: 3, friends: 2, change, ..plan }).finish();
        assert_eq!(report.false_bans(), 0, "seed {seed}");
        (report.convictions.len() as u64, report.verifiers_banned.0 as u64)
    });
    let (authors, accomplices) = banned.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert_eq!(authors, SEEDS, "every author is banned");
    assert!(accomplices >= 2 * SEEDS / 6, "{accomplices} of {} accomplices", 2 * SEEDS);
}

/// `capture` of two of three: the rule takes them for the honest ones, and all of a thin row is audited (STAND-10).
#[test]
fn two_of_three_in_a_row_are_convicted_within_five_rounds() {
    let mut waited = Vec::new();
    for seed in 0..6 {
        let from = Round(5);
        // Of nine nodes on three rows, whoever is dealt row 0 with another one.
        let mut probe = Sim::new(plan(seed, 6, vec![Player::honest(); 9], 3));
        probe.run(HOUR);
        let row = |number: &usize| probe.ledger().member(&probe.id(*number))?.holding.map(|held| held.row);
        let of_row: Vec<usize> = (0..9).filter(|number| row(number) == Some(Row(0))).collect();
        let attacks = ["capture".parse().expect("an attack"), "capture".parse().expect("an attack")];
        let mut players = vec![Player::honest(); 9];
        let cheats = cast(2, &attacks, from, seed);
        for (number, cheat) in of_row.iter().take(2).zip(cheats) {
            players[*number] = cheat;
        }
        let report = Sim::new(plan(seed, 20, players, 3)).finish();
        assert_eq!((report.convictions.len(), report.false_bans()), (2, 0), "seed {seed}");
        waited.extend(report.convictions.iter().map(|conviction| conviction.effective.0 - from.0));
    }
    let mean = f64::from(waited.iter().sum::<u32>()) / waited.len() as f64;
    assert!(mean <= 5.0, "{mean} rounds on average: {waited:?}");
}

/// AGG-22: whatever one holder sends, by the plain mean and without audits.
#[test]
fn a_bomb_raises_no_second_moment_beyond_trust() {
    let attacks = ["bomb".parse().expect("an attack")];
    let base = plan(3, 12, cast(4, &attacks, Round(5), 3), 2);
    let change = |manifest: &mut Manifest| {
        (manifest.model.width, manifest.model.sequence) = (8, 16);
        manifest.optimiser.clip_norm = muster_core::codec::Real::new(1e6).expect("a number");
    };
    let held = Experts { held: 0, ..Experts::new(2) };
    let mut sim = Sim::new(Plan {
        verifiers: 0,
        final_rounds: 0,
        rule: Rule::Mean,
        change,
        experts: Some(held),
        ..base
    });
    let (mut before, mut largest) = (sim.state().clone(), 0.0f64);
    while sim.ledger().stage() != Stage::Closed {
        sim.run(sim.now() + 20);
        if sim.state().step() != before.step() {
            largest = largest.max(worst_growth(&sim, &before));
            before = sim.state().clone();
        }
    }
    // AGG-23 comes after AGG-22. Its dither is unbiased, so of the step that it may add to each value little is left.
    assert!(largest > 0.01 && largest <= 1.0 + 2e-3, "{largest} of what trust allows");
}

/// How much of what `trust` allows the mean second moment of a block of a row has grown by with the last update, at most.
fn worst_growth(sim: &Sim, before: &State) -> f64 {
    let (manifest, now) = (sim.ledger().manifest(), sim.state());
    let Family::Mixture(mixture) = &manifest.model.family else { panic!("a mixture") };
    let (layout, beta2) = (Layout::of_run(manifest), f64::from(manifest.optimiser.beta2.value()));
    let most = f64::from(mixture.trust.value()) * power_of_two(i32::from(manifest.training.grid_bits) + 1);
    let mut worst = 0.0f64;
    for shard in
        now.held().filter(|shard| *shard != ShardId::TRUNK && before.held().any(|held| held == *shard))
    {
        let of = |state: &State| {
            let one = state.select([shard]);
            (one.second, one.exponents)
        };
        let ((second, _), (earlier, exponents)) = (of(now), of(before));
        let (mut place, first) = (0, layout.shard(shard).expect("a shard").tensors.start);
        for block in layout.blocks_of(shard) {
            let block = layout.block(block).expect("a block");
            let range = place..place + block.range.len();
            place = range.end;
            let sum = |values: &[f32]| values.iter().map(|value| f64::from(*value)).sum::<f64>();
            let grown = sum(&second[range.clone()]) - beta2 * sum(&earlier[range.clone()]);
            let unit = most * power_of_two(i32::from(exponents[block.tensor - first]));
            worst = worst.max(grown / range.len() as f64 / (1.0 - beta2) / (unit * unit));
        }
    }
    worst
}

#[test]
fn rows_are_dealt_as_the_hypergeometric_tail_has_it() {
    let (table, good) = capture::report();
    assert!(good, "{table}");
}
