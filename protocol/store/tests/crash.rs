//! A process that is killed in the middle of its writes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use muster_core::ids::{Digest, Height, Round, RunId};
use muster_core::layout::ShardSize;
use muster_core::messages::record::{Body, Record};
use muster_core::sign::{Identity, Signed};
use muster_core::state::{Shard, State, Vector};
use muster_store::home::Home;
use muster_store::journal::Journal;

const CHILD: &str = "MUSTER_STORE_CRASH_HOME";

fn record(me: &Identity, height: u64) -> Signed<Record> {
    let body = Body::Close(Digest([height as u8; 32]));
    me.sign(RunId(Digest([1; 32])), &Record { height: Height(height), previous: Digest([3; 32]), body })
}

fn state(round: u32) -> State {
    let values = Vector::from(vec![round as f32; 1000]);
    let [first, second] = [values.clone(), values.clone()];
    let size = ShardSize { exponents: 1, coefficients: values.len() };
    let shards =
        vec![Shard { id: muster_core::ids::ShardId::TRUNK, step: round, beta_powers: [1.0; 2], size }];
    State { shards, exponents: vec![1], parameters: values, first, second }
}

/// Writes records, votes and states without end, and says after each what is done.
#[test]
fn child() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let home = Home::open(Path::new(&directory)).unwrap();
    let me = home.identity().unwrap();
    let journal = Journal::open(&home).unwrap();
    let start = journal.height().unwrap().0;
    for height in start.. {
        let round = Round(height as u32);
        let said = journal.put_vote("commit", round, &height.to_le_bytes()).unwrap();
        assert_eq!(said, height.to_le_bytes());
        journal.append(Height(height), &record(&me, height)).unwrap();
        home.save_state(round, &state(round.0), &state(round.0).roots()).unwrap();
        home.prune_states(&|kept| kept.0 + 3 > round.0).unwrap();
        writeln!(std::io::stdout(), "\ndone {height}").unwrap();
    }
}

#[test]
fn what_was_done_stays_done() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("home");
    let mut last = 0;
    for life in 1..=5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let done =
            lines.by_ref().filter_map(|line| line.strip_prefix("done ")?.parse::<u64>().ok()).nth(6 + life);
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said before it died counts too.
        let rest = lines.filter_map(|line| line.strip_prefix("done ")?.parse::<u64>().ok()).last();
        let done = rest.or(done).expect("the child gets that far");
        assert!(done >= last);

        let home = Home::open(&path).unwrap();
        let me = home.identity().unwrap();
        let journal = Journal::open(&home).unwrap();
        last = journal.height().unwrap().0;
        assert!(last > done, "{done} was done, {last} records are there");
        let expected: Vec<_> = (0..last).map(|height| record(&me, height)).collect();
        assert!(journal.records(Height(0), usize::MAX).unwrap() == expected);
        for height in 0..=done {
            let vote = journal.vote("commit", Round(height as u32)).unwrap();
            assert_eq!(vote, Some(height.to_le_bytes().to_vec()));
        }
        assert_eq!(home.load_state(Round(done as u32)).unwrap().0, state(done as u32));
        for round in home.states().unwrap() {
            assert_eq!(home.load_state(round).unwrap().0, state(round.0));
        }
    }
}
