use muster_core::ids::MemberId;
use muster_core::manifest::Exchange as Exchanged;
use muster_core::manifest::fixture::{local, tiny};

use super::exchange::Link;
use super::gossip::Topology;
use super::*;

/// Fig. 6 of "From promise to practice: realizing high-performance decentralized training" (arXiv 2410.11998): milliseconds a
/// step of Transformer-base, as read from the image, by members: all-reduce, exponential, alternating.
struct Cluster {
    name: &'static str,
    /// Members of one machine, which share its line, and bytes a second of that.
    machine: usize,
    rate: f64,
    bars: &'static [(usize, [f64; 3])],
    /// Five numbers that were fitted to the nine bars: seconds of a step that do not shrink with members, seconds that do, the
    /// line's use by pairs and by all at once, the variation. So this checks that the model has the shape of the figure, no more:
    /// that some uses exceed 1 says that the bytes assumed here (65 M parameters of 4 bytes) are too many.
    fixed: f64,
    shared: f64,
    pairs: f64,
    all: f64,
    variation: f64,
}

const BYTES: f64 = 260e6;

const CLUSTERS: [Cluster; 3] = [
    Cluster {
        name: "8 × T4, 100 Gbit/s",
        machine: 8,
        rate: 12.5e9,
        bars: &[(16, [372.5, 314.8, 312.3]), (32, [225.5, 178.8, 178.8]), (64, [167.3, 123.1, 122.2])],
        fixed: 0.0523,
        shared: 4.006,
        pairs: 1.654,
        all: 0.351,
        variation: 0.134,
    },
    Cluster {
        name: "4 × A100, 100 Gbit/s",
        machine: 4,
        rate: 12.5e9,
        bars: &[(8, [73.0, 63.4, 61.7]), (16, [54.8, 46.8, 45.8]), (32, [51.5, 44.7, 43.7])],
        fixed: 0.0335,
        shared: 0.2212,
        pairs: 1.988,
        all: 1.162,
        variation: 0.117,
    },
    Cluster {
        name: "4 × A40, 25 Gbit/s",
        machine: 4,
        rate: 3.125e9,
        bars: &[(8, [166.1, 122.8, 122.0]), (16, [195.5, 97.4, 78.9]), (32, [188.5, 110.8, 67.9])],
        fixed: 0.0498,
        shared: 0.5332,
        pairs: 2.576,
        all: 1.003,
        variation: 0.0,
    },
];

impl Cluster {
    /// Milliseconds of a step in the three ways.
    fn model(&self, members: usize) -> [f64; 3] {
        let Self { machine, rate, fixed, shared, pairs, all, variation, .. } = *self;
        let means = vec![fixed + shared / members as f64; members];
        // A ring over all members passes each machine's line once, both ways at the same time.
        let line = Link { up: rate * all, down: rate * all };
        let (links, latency) = (vec![line; members], 0.0);
        let exchange = Exchange { links, server: line, contribution: BYTES, results: BYTES, latency };
        let (rest, records, tokens) = (0.0, 0.0, 25e3);
        // Gradients leave during the backward pass, which is two thirds of a step.
        let job = Job {
            computing: means.clone(),
            variation,
            hidden: 2.0 / 3.0,
            rest,
            records,
            exchange,
            tokens,
            local: (BYTES, BYTES),
        };
        let play = |topology, edge: &dyn Fn(usize, usize, usize) -> f64| {
            1e3 * period(&means, topology, &mut Draws::new(SEED, variation), edge)
        };
        let one = BYTES / (rate * pairs);
        let apart = |from: usize, to: usize| from / machine != to / machine;
        // All members of a machine cross its line at once.
        let exponential = |from, to, _| if apart(from, to) { machine as f64 * one } else { 0.0 };
        // A ring over the members of two machines.
        let both = 2.0 * machine as f64;
        let alternating = |from, to, _| if apart(from, to) { 2.0 * (both - 1.0) / both * one } else { 0.0 };
        [
            1e3 * job.step(Way::Ring).seconds,
            play(Topology::Exponential, &exponential),
            play(Topology::Alternating { cluster: machine }, &alternating),
        ]
    }
}

#[test]
fn the_model_has_the_shape_of_figure_6() {
    for cluster in &CLUSTERS {
        let errors = cluster.bars.iter().flat_map(|(members, seen)| {
            let model = cluster.model(*members);
            model.into_iter().zip(seen).map(|(model, seen)| (model / seen - 1.0).abs()).collect::<Vec<_>>()
        });
        let errors: Vec<f64> = errors.collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        assert!(mean <= 0.1, "{}: {errors:.3?}", cluster.name);
    }
    let [all_reduce, _, alternating] = CLUSTERS[2].model(32);
    let ratio = all_reduce / alternating;
    assert!((ratio - 2.78).abs() <= 0.3, "all-reduce takes {ratio} times as long as alternating exchange");
}

fn homes(megabits: f64) -> Job {
    let links = vec![Link::megabits(megabits, megabits); 8];
    let exchange = Exchange { server: links[0], links, contribution: 16e6, results: 9e6, latency: 0.03 };
    Job {
        computing: vec![10.0; 8],
        variation: 0.1,
        hidden: 0.0,
        rest: 0.5,
        records: 0.2,
        exchange,
        local: (16e6, 9e6),
        tokens: 1e5,
    }
}

#[test]
fn slow_lines_want_more_local_steps_and_the_advice_says_where_that_flips() {
    assert_eq!([1000.0, 10.0, 3.0, 0.1].map(|rate| homes(rate).advice()), [1, 8, 32, 128]);
    let job = homes(10.0);
    let flips = job.flips();
    assert!(flips.windows(2).all(|pair| pair[0].0 > pair[1].0 && pair[0].1 < pair[1].1), "{flips:?}");
    for (times, steps) in &flips {
        assert_eq!(job.with_lines(*times).advice(), *steps);
    }
    let text = job.text();
    for words in [
        "all-reduce, equal parts",
        "128 local steps",
        "gossip, alternating",
        "Choose 8 local steps",
        "Mbit/s on",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn what_a_step_waits_for_adds_up_to_its_seconds() {
    for way in Way::all() {
        let Step { seconds, computing, slowest, exchange, sent } = homes(20.0).step(way);
        assert!((computing + slowest + exchange - seconds).abs() < 1e-9 && sent > 0.0, "{way:?}");
        assert!(seconds >= computing && slowest >= 0.0, "{way:?}: {seconds} {computing}");
    }
    let (synchronous, delayed) = (homes(20.0).step(Way::AllReduce), homes(20.0).step(Way::Delayed));
    assert!(delayed.seconds < synchronous.seconds, "the exchange hides beneath the computing");
}

#[test]
fn bytes_are_those_that_were_counted() {
    // tests/bench/README.md: `bytes.py`, four members with four leaves each, by `grid_bits` and `result_bits`; then the members of
    // `exchange.py`, with a leaf each.
    let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 1000, 4);
    let near = |said: f64, seen: f64| assert!((said / seen - 1.0).abs() < 0.05, "{said} {seen}");
    manifest.training.leaves = 16;
    for (grids, seen) in
        [((13, 8), (2.28, 1.34)), ((8, 8), (1.66, 1.34)), ((8, 4), (1.65, 0.84)), ((4, 4), (1.16, 0.84))]
    {
        (manifest.training.grid_bits, manifest.aggregation.result_bits) = grids;
        let (contribution, results) = packed(&manifest, 4);
        near(contribution, seen.0);
        near(results, seen.1);
    }
    manifest.training.leaves = 4;
    (manifest.training.grid_bits, manifest.aggregation.result_bits) = (8, 4);
    let (contribution, results) = packed(&manifest, 4);
    near(contribution + results, 23.7 / 10.7);
}

/// Several local steps move the whole way of a member, and the second moments beside it, whatever the run exchanges now.
#[test]
fn local_steps_move_what_local_updates_move() {
    let lines = vec![Link::megabits(100.0, 100.0); 4];
    let exchange = Exchange { server: lines[0], links: lines, contribution: 0.0, results: 0.0, latency: 0.0 };
    let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 1000, 4);
    let planned = |manifest: &Manifest| job(manifest, 1.0, 0.1, exchange.clone());
    let gradients = planned(&manifest);
    assert!(gradients.local.0 > gradients.exchange.contribution, "{gradients:?}");
    assert!(gradients.local.1 > gradients.exchange.results, "{gradients:?}");
    let sent = |steps| gradients.step(Way::Local(steps)).sent * f64::from(steps);
    assert_eq!(sent(1), gradients.step(Way::Filled).sent);
    assert!(sent(8) > sent(1));
    local(&mut manifest, 4);
    if let Exchanged::Local(local) = &mut manifest.exchange {
        local.moments_every = Local::default().moments_every;
    }
    assert_eq!(planned(&manifest).local, gradients.local);
}
