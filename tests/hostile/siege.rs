//! Strangers who flood every port, several kinds of floods at once: rounds go on, no honest member fails, the steward does not
//! grow.

use std::time::{Duration, Instant};

use e2e::floods::{Flood, Target};
use e2e::onlooker::{Onlooker, failed_since};
use e2e::processes::{Process, Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use e2e::timed::resident;
use muster_core::ids::{MemberId, Round};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::caller::{key_of, run};

/// What a process may grow by.
const GROWTH: u64 = 64 << 20;
/// How long each group of floods lasts at least, and rounds that go by meanwhile.
const STRETCH: (Duration, u64) = (Duration::from_secs(8), 8);
/// Descriptors of a steward that has few.
const FEW: u32 = 256;

/// Two nodes, a verifier, and a steward with every port that it can have.
struct Besieged {
    run: Run,
    steward: Process,
    members: Vec<Process>,
    honest: Vec<MemberId>,
    onlooker: Onlooker,
    runtime: Runtime,
}

impl Besieged {
    fn begin(start: impl FnOnce(&Run) -> Process) -> Self {
        let run = run(Settings { rounds: 2_000, verifiers: 1, ..Settings::default() });
        let steward = start(&run);
        let nodes = run.invite("node", 2);
        let names = ["first", "second"];
        let mut members: Vec<Process> = names.iter().map(|name| run.join(name, &nodes, &[])).collect();
        members.push(run.watch("verifier", &run.invite("verifier", 1)));
        run.wait_round(4);
        // Whoever is still joining waits for a place among strangers (N7); these are to be members.
        wait_for("the verifier's first audits", || run.events("audit").len() > 3);
        let honest = ["first", "second", "verifier"].map(|name| key_of(&run.path(name)).id()).to_vec();
        let (onlooker, runtime) = (Onlooker::of(&run), Runtime::new().expect("threads"));
        Self { run, steward, members, honest, onlooker, runtime }
    }

    fn rounds(&self) -> u64 {
        // Not by `events`, which reads every line as JSON: it would take the processor from the run.
        let log = std::fs::read_to_string(self.run.path("run/log.jsonl")).unwrap_or_default();
        log.matches("\"event\":\"round\"").count() as u64
    }

    fn target(&self) -> Target {
        self.runtime.block_on(self.onlooker.target(&self.steward, &self.honest[0]))
    }

    /// Floods until the stretch is over: nobody grows meanwhile.
    fn withstands(&mut self, floods: &[Flood], target: &Target) {
        let watched = [&self.steward, &self.members[0]].map(Process::id);
        let before = watched.map(resident);
        let begin = async {
            let mut tasks: JoinSet<()> = JoinSet::new();
            for flood in floods {
                let (mut flood, _) = flood.begin(target).await;
                tasks.spawn(async move { while flood.join_next().await.is_some() {} });
            }
            tasks
        };
        let _flood = self.runtime.block_on(begin);
        let (least, rounds) = STRETCH;
        let (began, first) = (Instant::now(), self.rounds());
        wait_for(&format!("rounds under {floods:?}"), || {
            for (process, before) in watched.iter().zip(before) {
                let grown = resident(*process).saturating_sub(before);
                assert!(grown <= GROWTH, "{floods:?}: grown by {} MiB", grown >> 20);
            }
            began.elapsed() >= least && self.rounds() >= first + rounds
        });
    }

    /// Nobody has failed since, or ended.
    fn is_whole(&mut self, since: Round) {
        let ledger = self.runtime.block_on(self.onlooker.ledger());
        assert_eq!(failed_since(&ledger, &self.honest, since), 0, "{:?}", ledger.members());
        for process in self.members.iter_mut().chain([&mut self.steward]) {
            assert_eq!(process.wait_at_most(Duration::from_millis(50)), None, "{}", process.log());
            assert!(!process.log().contains("panicked"), "{}", process.log());
        }
    }
}

#[test]
fn rounds_go_on_and_nobody_fails_or_grows_while_strangers_flood_every_port() {
    let mut besieged = Besieged::begin(|run| run.host_with(&["--web", "127.0.0.1:0"]));
    let (target, since) = (besieged.target(), Round(besieged.rounds() as u32));
    let together: [&[Flood]; 3] = [
        &[Flood::Idle, Flood::Knock, Flood::Web, Flood::Cut],
        &[Flood::Follow, Flood::Board, Flood::Data, Flood::Gossip],
        &[Flood::Deaf, Flood::Brim, Flood::Put],
    ];
    for floods in together {
        besieged.withstands(floods, &target);
    }
    besieged.is_whole(since);
}

#[test]
fn a_steward_with_few_descriptors_serves_its_members_and_does_not_end() {
    let start = |run: &Run| {
        let few = format!("ulimit -n {FEW}; exec \"$0\" \"$@\"");
        let folder = run.at("run");
        let words = [
            "-c",
            &few,
            programs!().muster,
            "host",
            &folder,
            "--exit-when-done",
            "--listen",
            "127.0.0.1:0",
            "--web",
            "127.0.0.1:0",
        ];
        let steward = run.spawn("steward", "sh", &words);
        wait_for("the steward to listen", || run.path("run/address").exists());
        steward
    };
    let mut besieged = Besieged::begin(start);
    let (target, since) = (besieged.target(), Round(besieged.rounds() as u32));
    besieged.withstands(&[Flood::Idle], &target);
    besieged.is_whole(since);
}
