//! Whether a run fits into this machine's memory, known before any is asked for.
//!
//! What is counted is what programs were seen to take (`tests/bench/memory.py`): what grows with the model, what of the committed
//! files is in memory, and what a program takes beside. Swap counts as memory that is there.

use std::fs;

use muster_compute::{Machine, buffers};
use muster_core::error::Misuse;
use muster_core::layout::Layout;
use muster_core::limits::{DATA_CHUNK_BYTES, PAGE_CHUNKS};
use muster_core::manifest::{DataFile, Manifest};
use muster_core::regime::Regime;
use muster_store::dataset::RECENT_BYTES;

use crate::results::rounds_held;

/// Bytes of a page of a committed file (DATA-1).
const PAGE_BYTES: u64 = PAGE_CHUNKS * DATA_CHUNK_BYTES as u64;

/// What a program takes beside all that grows with its run: its code, the runtime, connections, messages.
const PROGRAM: u64 = 64 << 20;
/// Bytes of leaves in memory: beyond them leaves are packed in files.
pub const LEAF_BYTES: u64 = 64 << 20;
/// Parameters of the largest state whose loss on the held-out text a steward measures.
pub const MEASURED: u64 = 200_000_000;
/// Bytes of states that wait for that.
const WAITING: u64 = 64 << 20;
/// Bytes that states may take in memory, beyond which they are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The newest one, with its moments.
    pub state: u64,
    /// All earlier ones that are kept.
    pub past: u64,
}

/// Of every program: an earlier state is read for an audit now and then, the newest one in each round.
pub const ROOM: Room = Room { state: 256 << 20, past: 64 << 20 };

/// Whether a state of so many parameters is on the disk with its moments.
pub fn is_away(parameters: u64) -> bool {
    vectors(parameters, 3) > ROOM.state
}

/// Bytes that a run takes, by the settings that they follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// What is there once, however long anything is kept: parameters, moments, updates, results.
    model: u64,
    /// Earlier states, as far as they are in memory.
    states: u64,
    /// Contributions that are kept for audits.
    contributions: u64,
    /// What computing a leaf keeps.
    leaves: u64,
    /// What of the committed files is in memory.
    text: u64,
}

impl Need {
    /// What comes on top of the committed files, where these are in memory already, or made up.
    pub fn beside_text(self) -> Self {
        Self { text: 0, ..self }
    }

    /// The same, and so many parameters in memory at least, on which the calibration leaf is computed: the first state goes to
    /// the disk after that.
    fn since_its_beginning(self, parameters: u64) -> Self {
        Self { model: self.model.max(vectors(parameters, 1).saturating_add(PROGRAM)), ..self }
    }

    /// In all.
    pub fn bytes(&self) -> u64 {
        self.parts().iter().fold(0, |all, (bytes, _)| all.saturating_add(*bytes))
    }

    /// Each with its settings.
    fn parts(&self) -> [(u64, &'static str); 5] {
        [
            (self.model, "model.*"),
            (self.states, "retention.states"),
            (self.contributions, "retention.contributions"),
            (self.text, "the run's text"),
            (self.leaves, "training.leaf_windows, model.sequence and training.recompute"),
        ]
    }

    /// The settings that most of it follows from: the largest parts, down to a tenth of the whole.
    pub fn because(&self) -> String {
        largest(&self.parts(), self.bytes())
    }
}

/// The largest of these parts of a whole, down to a tenth of it, each with what it follows from.
pub fn largest(parts: &[(u64, &'static str)], whole: u64) -> String {
    let mut large: Vec<_> = parts.iter().filter(|(bytes, _)| *bytes > whole / 10).collect();
    large.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    large.iter().map(|(bytes, of)| format!("{} by {of}", shown(*bytes))).collect::<Vec<_>>().join(", ")
}

/// What following a run with all its rows takes: the state with its moments and earlier ones, as far as they are in memory,
/// results, which are applied as they travel, and the arithmetic on `threads` threads.
pub fn following(manifest: &Manifest, threads: usize) -> Need {
    let need = holding_all(manifest, threads);
    need.since_its_beginning(manifest.model.all_parameters())
}

fn holding_all(manifest: &Manifest, threads: usize) -> Need {
    let all = manifest.model.all_parameters();
    holding(manifest, threads, all, results(manifest, all, usize::MAX))
}

/// What a verifier takes: following; an earlier state and a leaf on it, and a contribution as it travels. Others wait while there is
/// less.
pub fn auditing(manifest: &Manifest, machine: &Machine) -> Need {
    // Beside a state the integers of a segment, or of a leaf from a device that was named. A leaf from the processor is sketched as
    // it is computed.
    let whole = Regime::of(manifest).recomputes_chains() || machine.gives_leaves_whole(manifest);
    let planes = Layout::of_run(manifest).planes() as u64;
    judging(manifest, machine, if whole { planes } else { 0 }, 1)
}

/// What a verifier takes at most, which no honest round takes: all leaves of a contribution that is withheld are summed, on what may
/// turn out to be a device, while a second contribution waits.
pub fn auditing_at_most(manifest: &Manifest, machine: &Machine) -> Need {
    let planes = Layout::of_run(manifest).planes() as u64;
    let regime = Regime::of(manifest);
    let (tolerates, chains) = (regime.keeps_integers(), regime.recomputes_chains());
    let leaves = if machine.is_on_device(manifest).unwrap_or(true) {
        // One is computed while the one before is added.
        2
    } else {
        u64::from(chains || machine.gives_leaves_whole(manifest) || tolerates)
    };
    // TOL-6: the sum is compared with what was committed.
    let sums = if tolerates { 2 } else { 1 };
    judging(manifest, machine, planes * (leaves + sums), 2)
}

/// Following, with a state that leaves are computed on, so many vectors of integers, and so many contributions.
fn judging(manifest: &Manifest, machine: &Machine, integers: u64, contributions: u64) -> Need {
    let need = holding_all(manifest, machine.threads);
    let audited = vectors(manifest.model.parameters(), vectors_read(manifest) + integers);
    let fetched = contribution(manifest).saturating_mul(contributions);
    let leaves = need.leaves.max(machine.buffers(manifest));
    Need { model: need.model.saturating_add(audited).saturating_add(fetched), leaves, ..need }
}

/// Vectors of a state that leaves are computed on, where it is read from the disk.
fn vectors_read(manifest: &Manifest) -> u64 {
    // As the state is kept (STATE-6).
    if manifest.keeps_moments() { 3 } else { 1 }
}

/// States of so many parameters that wait to be measured at once: at least one, of a run's about 40.
pub fn waiting(parameters: u64) -> u64 {
    (WAITING / (4 * parameters).max(1)).clamp(1, 40)
}

/// What a steward takes: of several rows one is in memory; the results of a round, and the parts that aggregators bring of their
/// own, on their way to the disk; a state that is measured, and those that wait for it, unless they are on the disk.
pub fn hosting(manifest: &Manifest, threads: usize) -> Need {
    let need = paging(manifest, threads, 1);
    let path = manifest.model.parameters();
    let waiting = if is_away(path) { 0 } else { waiting(path) };
    let measured = if path > MEASURED { 0 } else { vectors(path, 1 + waiting) };
    let model = need.model.saturating_add(contribution(manifest)).saturating_add(measured);
    Need { model, ..need }.since_its_beginning(path)
}

/// What a replay with a folder takes: of several rows one is in memory, and the aggregates of which a row may wait; the state
/// that leaves of a round are computed on, and their sum.
pub fn replaying(manifest: &Manifest, threads: usize) -> Need {
    let need = paging(manifest, threads, manifest.model.lag() as usize + 1);
    let planes = Layout::of_run(manifest).planes() as u64;
    let path = manifest.model.parameters();
    let state = if is_away(path) { vectors_read(manifest) } else { 0 };
    let computing = vectors(path, state + planes);
    Need { model: need.model.saturating_add(computing), ..need }
}

fn paging(manifest: &Manifest, threads: usize, aggregates: usize) -> Need {
    let all = manifest.model.all_parameters();
    let results = results(manifest, all, aggregates);
    let need = holding(manifest, threads, manifest.model.parameters(), results);
    // Rows that are drawn separately are made in memory, before they go to the disk.
    let drawn = if manifest.model.rows_after(0) > 1 { vectors(all, 4) } else { 0 };
    Need { model: need.model.max(drawn), ..need }
}

/// Bytes of the results of as many rounds as are held, of `most` or all of the run at most: about a byte a parameter and plane
/// (AGG-24).
fn results(manifest: &Manifest, parameters: u64, most: usize) -> u64 {
    let round = parameters.saturating_mul(Layout::of_run(manifest).planes() as u64);
    let rounds = rounds_held(round).min(most) as u64;
    round.saturating_mul(rounds.min(manifest.training.rounds.into()))
}

/// Bytes of a contribution as it travels, about a byte an integer beside the bits of its grid (COMMIT-6).
pub(crate) fn contribution(manifest: &Manifest) -> u64 {
    let planes = Layout::of_run(manifest).planes() as u64;
    let bits = planes * (u64::from(manifest.training.grid_bits) + 8);
    manifest.model.parameters().saturating_mul(bits) / 8
}

/// What a state of so many parameters takes, with the earlier ones, beside results of so many bytes.
fn holding(manifest: &Manifest, threads: usize, parameters: u64, results: u64) -> Need {
    let training = &manifest.training;
    // To go back to a state takes its moments, too.
    let whole = if manifest.keeps_moments() { 3 } else { 1 };
    let past = past(manifest, vectors(parameters, whole));
    // Parameters and two moments. The snapshot shares their memory.
    let state = if vectors(parameters, 3) > ROOM.state { 0 } else { vectors(parameters, 3) };
    Need {
        model: state.saturating_add(results).saturating_add(PROGRAM),
        states: if past > ROOM.past { 0 } else { past },
        contributions: 0,
        leaves: buffers(&manifest.model, training, threads),
        text: text(manifest),
    }
}

/// Bytes of all earlier states that are kept, of so many each.
pub fn past(manifest: &Manifest, bytes: u64) -> u64 {
    bytes.saturating_mul(u64::from(manifest.retention.states.min(manifest.training.rounds)))
}

/// Of texts and given parameters a hash for each page, and the pages that were read last; of the other files all.
fn text(manifest: &Manifest) -> u64 {
    let of = |file: DataFile| {
        let bytes = manifest.data.file_bytes(file);
        match file {
            DataFile::Tokeniser | DataFile::Router => bytes,
            _ => bytes.min(RECENT_BYTES).saturating_add(bytes / PAGE_BYTES * 32),
        }
    };
    DataFile::ALL.into_iter().map(of).fold(0, u64::saturating_add)
}

/// What a node takes: following, contributions that are kept for audits, its own and those that others bring, a leaf and the sum
/// under way, and what computes leaves.
pub fn contributing(manifest: &Manifest, machine: &Machine) -> Need {
    let Manifest { training, retention, .. } = manifest;
    let kept = u64::from(retention.states.min(retention.contributions).min(training.rounds));
    // AUDIT-2: those whose tables are written down do not stay in memory, but for the newest ones.
    let newest = kept.min(2);
    let kept = if manifest.profile.has_one_table() { newest } else { kept };
    // A node holds the trunk and one row.
    let path = manifest.model.parameters();
    let need = holding(manifest, machine.threads, path, results(manifest, path, usize::MAX));
    let planes = Layout::of_run(manifest).planes() as u64;
    // A leaf that is alone is the sum. Others are added to a sum while the next is computed.
    let leaves = manifest.leaves_of_seat(manifest.admission.start_nodes.into());
    let sums = if leaves > 1 { 2 * planes } else { planes };
    let leaves = if leaves > 1 { vectors(path, planes * u64::from(leaves)).min(LEAF_BYTES) } else { 0 };
    // Of local updates: the gradient of a step, the state after the steps, how far it has moved, and the integers of the last
    // segment's end.
    let regime = Regime::of(manifest);
    let chain = if regime.recomputes_chains() { 5 + planes } else { 0 };
    // ROUND-29: the sum of the round ahead, beside what was committed to in this one.
    let ahead = if regime.foresees() { planes } else { 0 };
    let state = if is_away(path) { vectors_read(manifest) } else { 0 };
    let leaves = machine.buffers(manifest).saturating_add(leaves);
    // By turns: what computing takes, beside the contribution before; and what is delivered, with what others bring, which is
    // together as much as one contribution for every member that reduces a part.
    let one = contribution(manifest);
    let computing = vectors(path, state + sums + chain + ahead).saturating_add(one);
    let exchanging = one.saturating_mul(newest + u64::from(manifest.aggregation.replicas));
    let most = computing.max(exchanging.saturating_sub(leaves));
    Need {
        model: need.model.saturating_add(most),
        contributions: one.saturating_mul(kept - newest),
        leaves,
        ..need
    }
}

/// Bytes of `count` vectors of so many parameters.
fn vectors(parameters: u64, count: u64) -> u64 {
    parameters.saturating_mul(4).saturating_mul(count)
}

/// Refuses what this machine cannot give, or its owner does not: `most` bytes, if there is a bound.
///
/// # Errors
/// [`Misuse`] naming both sizes, and the settings that the need follows from.
pub fn check(need: Need, most: Option<u64>) -> Result<(), Misuse> {
    if let Some(most) = most.filter(|most| need.bytes() > *most) {
        return Err(Misuse(format!(
            "this run takes about {} GiB of memory here ({}), --max-memory allows {}; allow more, use fewer --threads, or join \
             another run",
            gibibytes(need.bytes()),
            need.because(),
            gibibytes(most)
        )));
    }
    within(need, available()).map_err(|Misuse(why)| {
        Misuse(format!("{why}; end other programs, use fewer --threads, or take part with a larger machine"))
    })
}

/// Refuses a need above the bytes that a machine has left; refuses nothing where these are unknown.
///
/// # Errors
/// As [`check`].
pub fn within(need: Need, available: Option<u64>) -> Result<(), Misuse> {
    match available {
        Some(available) if need.bytes() > available => Err(Misuse(format!(
            "this run takes about {} of memory here ({}), this machine has {} left",
            shown(need.bytes()),
            need.because(),
            shown(available)
        ))),
        _ => Ok(()),
    }
}

/// Whether a machine with `available` bytes left can keep one more earlier state of `bytes`, beside `kept` bytes of them. Where
/// it does not tell, as much is kept as is in memory anyway where the disk is not asked.
pub fn holds(bytes: u64, kept: u64, available: Option<u64>) -> bool {
    match available {
        // So much more is taken in a round whatever is kept.
        Some(available) => bytes.saturating_add(ROOM.past) <= available,
        None => bytes.saturating_add(kept) <= ROOM.past,
    }
}

/// Bytes in units that people read.
pub fn shown(bytes: u64) -> String {
    let (gibibyte, mebibyte) = (f64::from(1 << 30), f64::from(1 << 20));
    let bytes = bytes as f64;
    if bytes < gibibyte {
        format!("{:.0} MiB", bytes / mebibyte)
    } else {
        format!("{:.1} GiB", bytes / gibibyte)
    }
}

/// Bytes as options name them: GiB, rounded up.
pub(crate) fn gibibytes(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 30) * 1e4).ceil() / 1e4
}

/// Bytes that this process can still get, swap included, where Linux tells.
pub fn available() -> Option<u64> {
    let free = free(&fs::read_to_string("/proc/meminfo").ok()?)?;
    // In a container the machine's memory is not this process's.
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|limit| limit.trim().parse().ok());
    Some(limit.map_or(free, |limit| free.min(limit)))
}

fn free(meminfo: &str) -> Option<u64> {
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.saturating_mul(1024))
    };
    Some(of("MemAvailable")?.saturating_add(of("SwapFree").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use muster_compute::DeviceChoice;
    use muster_core::ids::MemberId;
    use muster_core::manifest::Profile;
    use muster_core::manifest::fixture::tiny;

    use super::*;

    #[test]
    fn of_a_text_only_what_is_in_memory_is_counted() {
        let machine = Machine::new(1, None);
        let needs = |bytes| {
            let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 9, 2);
            manifest.data.bytes = bytes;
            let one = [following(&manifest, 1), hosting(&manifest, 1), replaying(&manifest, 1)];
            one.into_iter().chain([contributing(&manifest, &machine)]).collect::<Vec<_>>()
        };
        for (small, large) in needs(0).into_iter().zip(needs(2 << 30)) {
            // A hash of 32 bytes for each 64 KiB, and the pages that were read last.
            assert_eq!(large.bytes() - small.bytes(), (2 << 30) / 2048 + RECENT_BYTES);
            assert_eq!(large.beside_text().bytes(), small.beside_text().bytes());
        }
    }

    #[test]
    fn a_verifier_needs_room_for_what_a_cheat_can_have_it_sum() {
        let (processor, named) = (DeviceChoice::Cpu, DeviceChoice::Gpu(0));
        for (profile, device, vectors) in [
            // The sum; the leaf as well; both, and what was committed.
            (Profile::Exact, processor, 1),
            (Profile::Exact, named, 2),
            (Profile::F32, processor, 3),
        ] {
            let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 9, 2);
            manifest.profile = profile;
            let machine = Machine { device, ..Machine::new(1, None) };
            let honest = auditing(&manifest, &machine).bytes();
            let whole = if machine.gives_leaves_whole(&manifest) { 1 } else { 0 };
            let more = auditing_at_most(&manifest, &machine).bytes() - honest - contribution(&manifest);
            assert!(
                more >= 4 * manifest.model.parameters() * (vectors - whole),
                "{profile:?} {device}: {more}"
            );
        }
    }

    #[test]
    fn limit_4_an_earlier_state_is_held_while_there_is_room_for_it() {
        assert!(holds(1 << 30, u64::MAX, Some((1 << 30) + ROOM.past)));
        assert!(!holds(1 << 30, 0, Some((1 << 30) + ROOM.past - 1)));
        assert!(holds(ROOM.past, 0, None) && !holds(ROOM.past, 1, None));
    }

    #[test]
    fn what_is_free_is_read() {
        let text = "MemTotal:       16000000 kB\nMemAvailable:    1000 kB\nSwapFree:   24 kB\n";
        assert_eq!(free(text), Some(1024 * 1024));
        assert_eq!(free("MemAvailable: 2 kB"), Some(2048));
        assert_eq!(free("MemAvailable: many"), None);
    }

    #[test]
    fn a_refusal_names_both_sizes_and_the_settings() {
        let mut need = Need { model: 6 << 30, states: 1 << 40, contributions: 3, leaves: 200 << 30, text: 0 };
        assert_eq!(need.bytes(), (1230 << 30) + 3);
        within(need, None).unwrap();
        within(need, Some(need.bytes())).unwrap();
        let why = within(need, Some(1 << 30)).unwrap_err().to_string();
        assert!(
            why.contains("about 1230.0 GiB of memory here (1024.0 GiB by retention.states, 200"),
            "{why}"
        );
        assert!(why.contains("training.leaf_windows") && !why.contains("model.*"), "{why}");
        assert!(why.contains("has 1.0 GiB left"), "{why}");
        need.text = 1 << 40;
        let why = within(need, Some(1 << 30)).unwrap_err().to_string();
        assert!(why.contains("1024.0 GiB by the run's text"), "{why}");
        assert_eq!(need.beside_text().bytes(), (1230 << 30) + 3);
        need.states = u64::MAX;
        if available().is_some() {
            let why = check(need, None).unwrap_err().to_string();
            assert!(why.contains("larger machine"), "{why}");
        }
        let small = Need { model: 1 << 20, states: 0, contributions: 0, leaves: 1 << 22, text: 0 };
        check(small, Some(small.bytes())).unwrap();
        let why = check(small, Some(small.bytes() - 1)).unwrap_err().to_string();
        assert!(
            why.contains("takes about 0.0049 GiB of memory here (4 MiB by training.leaf_windows"),
            "{why}"
        );
        assert!(
            why.contains("--max-memory allows 0.0049; allow more, use fewer --threads, or join"),
            "{why}"
        );
    }
}
