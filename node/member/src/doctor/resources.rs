//! What this machine has for a run: arithmetic, threads, devices, memory, disk, libtorch.

use std::fs::{self, OpenOptions};
use std::num::NonZero;
use std::path::Path;
use std::thread::available_parallelism;

use muster_compute::{DeviceChoice, Found, Library, Machine, broken_drivers, devices, missing_devices};
use muster_core::error::Misuse;
use muster_core::manifest::{Manifest, Profile};
use muster_net::capacity::{CHANNEL, Capacity, REMEDY};
use muster_replica::disk;
use muster_replica::memory::{self, Need};
use muster_store::room;

use super::finding::Finding;

/// Least space that is left for whatever else uses the disk.
const SPARE: u64 = 1 << 30;

/// Computes the known answers on the path and the threads that a run would use; no more threads than there are processors.
pub fn arithmetic(machine: &Machine, profile: Profile) -> Finding {
    let most = available_parallelism().map_or(1, NonZero::get);
    let machine = Machine { threads: machine.threads.clamp(1, most), ..*machine };
    let backend = match machine.leaves(profile) {
        Ok(backend) => backend,
        // What it says holds the remedy.
        Err(Misuse(why)) => return Finding::care("arithmetic", "cannot compute this run", why),
    };
    tested(backend)
}

fn tested(mut backend: Box<dyn muster_compute::Backend>) -> Finding {
    match backend.self_test() {
        Ok(()) => {
            let close = backend.closeness().map(|closeness| format!("; {closeness}")).unwrap_or_default();
            Finding::good("arithmetic", format!("{}: all known answers{close}", backend.describe()))
        }
        Err(Misuse(why)) => {
            let remedy = "do not take part with it. Test the memory (memtest86+), take back any overclocking, and see whether \
                          --kernel portable gives the known answers";
            Finding::care("arithmetic", why, remedy)
        }
    }
}

/// Compares the threads asked for with the processors that this process may use.
pub fn threads(machine: &Machine) -> Finding {
    let asked = machine.threads.max(1);
    match available_parallelism() {
        Err(_) => Finding::good("threads", format!("{asked}; the system does not tell how many it has")),
        Ok(most) if asked > most.get() => {
            let found = format!("{asked} asked for, of {most} that this process may use");
            Finding::care("threads", found, format!("say --threads {most} or fewer"))
        }
        Ok(most) => Finding::good("threads", format!("{asked} of {most} that this process may use")),
    }
}

/// The devices of this machine by the names that `--device` takes, or what to install; whether one computes such a run where
/// none is named.
pub fn graphics(machine: &Machine, run: &Manifest) -> Finding {
    if machine.device == DeviceChoice::Cpu {
        return Finding::good("devices", "not looked for, as --device cpu says");
    }
    if let Some(why) = broken_drivers() {
        let found = format!("their drivers cannot be used ({why})");
        return Finding::care("devices", found, "install others, or say --device cpu");
    }
    let list = devices().iter().enumerate().map(|(number, found)| {
        let kind =
            if found.is_graphics() { "" } else { ", no graphics processor: computes only where it is named" };
        format!("gpu:{number} {}{kind}", found.says())
    });
    let list = list.collect::<Vec<String>>().join("; ");
    if list.is_empty() {
        // Nobody needs one.
        return Finding::good("devices", missing_devices());
    }
    let left_out = machine.device == DeviceChoice::Auto
        && devices().iter().any(Found::is_graphics)
        && machine.is_exact(run).unwrap_or(false);
    if left_out {
        let found = format!("{list}; but the processor computes{}", machine.reason(run));
        return Finding::care("devices", found, "install another driver of its vendor, or say --device cpu");
    }
    Finding::good("devices", list)
}

/// How many files and connections this process may have open (CHAN-13).
pub fn descriptors(capacity: &Capacity) -> Finding {
    let found = capacity.to_string();
    if capacity.is_full() {
        return Finding::good("files", found);
    }
    let found = format!("{found}; the program could use {CHANNEL} of members and strangers");
    Finding::care(
        "files",
        found,
        format!("it works, but where many dial, some have to wait; it takes {REMEDY}"),
    )
}

/// Compares a need with the memory that is left; `whose` is what takes it.
pub fn room(need: Need, whose: &str) -> Finding {
    let needed = format!("{whose} takes about {}", memory::shown(need.bytes()));
    match (memory::within(need, memory::available()), memory::available()) {
        (Err(Misuse(why)), _) => {
            Finding::care("memory", why, "end other programs, use fewer --threads, or another machine")
        }
        (Ok(()), None) => Finding::good("memory", format!("the system does not tell how much; {needed}")),
        (Ok(()), Some(left)) => Finding::good("memory", format!("{} left; {needed}", memory::shown(left))),
    }
}

/// Whether a directory can be written, and has room for what `whose` keeps in it.
pub fn space(directory: &Path, needed: Option<(disk::Need, &str)>) -> Finding {
    let there = room::existing(directory);
    if let Err(error) = probe(there) {
        let found = format!("{}: cannot be written ({error})", there.display());
        return Finding::care("disk", found, "name another directory with --data-dir");
    }
    let free = match room::free(there) {
        Ok(free) => free,
        Err(error) => {
            let found = format!("{}: its free space cannot be told ({error})", there.display());
            return Finding::care("disk", found, "name another directory with --data-dir");
        }
    };
    let needed = needed.map(|(need, whose)| {
        let more = need.bytes().saturating_sub(room::used(directory));
        (more, format!("{whose} takes about {} more ({})", memory::shown(more), need.because()))
    });
    compared(directory, free, needed)
}

fn compared(directory: &Path, free: u64, needed: Option<(u64, String)>) -> Finding {
    let mut found = format!("{} free at {}", memory::shown(free), directory.display());
    let (needed, words) = needed.unwrap_or_default();
    if needed > 0 {
        found += &format!("; {words}");
    }
    if free >= needed.saturating_add(SPARE) {
        return Finding::good("disk", found);
    }
    let remedy = format!(
        "free {} there, or name a directory on another disk with --data-dir",
        memory::shown(needed.saturating_add(SPARE) - free)
    );
    Finding::care("disk", found, remedy)
}

/// Makes a file and takes it away again.
fn probe(directory: &Path) -> std::io::Result<()> {
    let path = directory.join(format!(".muster-doctor-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&path)?;
    fs::remove_file(path)
}

/// Whether libtorch is there. In a program that becomes the one with libtorch, this starts it anew from the beginning: it
/// comes before anything is said.
pub fn libtorch(machine: &Machine) -> Finding {
    if !Library::Tch.is_built_in() {
        let found = "not built in; only runs of the profiles tf32 and bf16 need it";
        return Finding::good("libtorch", found);
    }
    let asked = Machine { library: Some(Library::Tch), ..*machine };
    match asked.leaves(Profile::F32) {
        Ok(backend) => Finding::good("libtorch", backend.describe()),
        Err(Misuse(why)) => Finding::care("libtorch", "cannot be used", why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arithmetic_of_this_machine_is_good() {
        let finding = arithmetic(&Machine::new(1, None), Profile::Exact);
        assert!(finding.is_good() && finding.line().contains("all known answers"), "{finding:?}");
        if !Library::Tch.is_built_in() {
            let finding = arithmetic(&Machine::new(1, None), Profile::Bf16);
            assert!(!finding.is_good() && finding.line().contains("--features tch"), "{finding:?}");
        }
    }

    #[test]
    fn more_threads_than_processors_need_care() {
        assert!(threads(&Machine::new(1, None)).is_good());
        let many = threads(&Machine::new(100_000, None));
        assert!(!many.is_good() && many.line().contains("--threads"), "{many:?}");
    }

    #[test]
    fn chan_13_few_files_and_connections_need_care() {
        assert!(descriptors(&Capacity::of(1 << 20)).is_good());
        let few = descriptors(&Capacity::of(256));
        assert!(!few.is_good() && few.line().contains("ulimit -n") && few.line().contains("256"), "{few:?}");
    }

    #[test]
    fn a_disk_needs_room_for_the_run_and_some_to_spare() {
        let at = Path::new("/data");
        let needed = |bytes| Some((bytes, "a node of this run takes 2.0 GiB more".to_owned()));
        assert!(compared(at, SPARE, None).is_good());
        assert!(compared(at, SPARE + (2 << 30), needed(2 << 30)).is_good());
        let full = compared(at, 1 << 30, needed(2 << 30));
        assert!(full.line().contains("a node of this run takes"), "{full:?}");
        assert!(!full.is_good() && full.line().contains("free 2.0 GiB there"), "{full:?}");
    }

    #[test]
    fn a_directory_is_examined_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("a/b");
        let finding = space(&deep, None);
        assert!(finding.line().contains("free at"), "{finding:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        let nowhere = space(Path::new("/proc/muster"), None);
        assert!(!nowhere.is_good() && nowhere.line().contains("--data-dir"), "{nowhere:?}");
    }

    #[test]
    fn without_libtorch_nothing_is_wrong() {
        if !Library::Tch.is_built_in() {
            assert!(libtorch(&Machine::default()).is_good());
        }
    }
}
