//! Cheats of single leaves beside the tolerances that honest machines need.

use std::sync::Arc;

use muster_compute::Device;
use muster_core::error::Misuse;
use muster_core::ids::{Digest, Leaf};
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Profile, Tolerance};
use muster_core::sketch::TableRow;
use muster_core::sketch::probe::{Probe, SUSPECT, WRONG};
use muster_core::state::{LeafJob, State};
use muster_verifier::calibrate::course::{Course, Passage};
use muster_verifier::calibrate::machines::{LeafComputer, at_hand, computed};
use muster_verifier::calibrate::measure::{Measured, tolerant};
use muster_verifier::calibrate::statistics::{exceeds_at_most, largest, median};
use muster_verifier::calibrate::trial::{Judged, Settled, ToleranceTrial, beacon, settle};

use super::setting::{Size, run};

/// How to gather.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The model.
    pub size: Size,
    /// The grid.
    pub grid_bits: u8,
    /// When, ascending; none is 0.
    pub checkpoints: Vec<u32>,
    /// Leaves to calibrate with at each of them, and again to cheat in.
    pub leaves: u64,
    /// What members compute in.
    pub profiles: Vec<Profile>,
    /// Where; everywhere where none is named.
    pub devices: Vec<Device>,
    /// Threads of the processor.
    pub threads: usize,
}

/// A way to compute a leaf otherwise than agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cheat {
    /// The mean over the first half of the windows.
    Half,
    /// The mean over all windows but the last.
    Dropped,
    /// The parameters of the round before.
    Stale,
    /// The windows of another leaf.
    OtherData,
    /// Weights of eight bits, by tensor.
    Int8,
    /// Weights of sixteen bits.
    Bf16,
    /// Products in bf16 where the profile has f32.
    Bf16Products,
    /// One target is another token.
    Label,
}

impl Cheat {
    /// All, the grossest first.
    pub const ALL: [Self; 8] = [
        Self::OtherData,
        Self::Half,
        Self::Stale,
        Self::Dropped,
        Self::Label,
        Self::Int8,
        Self::Bf16Products,
        Self::Bf16,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Half => "half the batch",
            Self::Dropped => "one sequence of 8 dropped",
            Self::Stale => "weights one step stale",
            Self::OtherData => "other data",
            Self::Int8 => "int8 weights",
            Self::Bf16 => "bf16 weights",
            Self::Bf16Products => "bf16 products",
            Self::Label => "1 label of 1,024 flipped",
        }
    }

    /// Whether it is one in this profile.
    fn is_one(self, profile: Profile) -> bool {
        self != Self::Bf16Products || profile != Profile::Bf16
    }
}

/// What is compared in an audit: the auditor's row, and what a member said.
type Pair = (Digest, TableRow, TableRow);

/// Everything about one profile.
pub struct Evidence {
    /// Of honest machines.
    pub measured: Measured,
    /// What a run would have, and by how much it is wider than what leaves need.
    pub tolerance: (Tolerance, f64),
    /// Leaves that the tolerances were not taken from.
    pub judged: Judged,
    /// Names of the machines.
    pub machines: Vec<String>,
    /// Deviations of honest pairs of leaves that the tolerances were not taken from.
    pub honest: Vec<f64>,
    /// Deviations of each cheat, at each checkpoint.
    pub cheats: Vec<(Cheat, Vec<Vec<f64>>)>,
    /// The held-out loss at each checkpoint.
    pub losses: Vec<f64>,
}

/// What is gathered of a profile while the course goes on.
struct Desk {
    profile: Profile,
    members_only: bool,
    machines: Vec<LeafComputer>,
    /// Computes products in bf16.
    cheap: LeafComputer,
    measured: Measured,
    trial: ToleranceTrial,
    honest: Vec<Pair>,
    cheats: Vec<(Cheat, Vec<Vec<Pair>>)>,
}

/// Trains, and lets honest machines and cheats compute the leaves of each checkpoint.
///
/// # Errors
/// [`Misuse`] without libtorch; of a profile, where honest machines are too far apart for it.
pub fn gather(plan: &Plan, done: &dyn Fn(&str)) -> Result<Vec<Gathered>, Misuse> {
    let rounds = plan.checkpoints.last().copied().unwrap_or_default();
    let (manifest, dataset) = run(&plan.size, plan.grid_bits, rounds);
    // Members may use the defined bits in f32: there both are the same.
    let among =
        |profile: &Profile| [Some((*profile, false)), (*profile != Profile::F32).then_some((*profile, true))];
    let desks = plan.profiles.iter().flat_map(among).flatten();
    let desks = desks.map(|(profile, members_only)| Desk::new(profile, members_only, plan, &manifest));
    let mut desks = desks.collect::<Result<Vec<_>, _>>()?;
    let mut course = Course::begin(manifest.clone(), dataset, plan.threads)?;
    let mut losses = Vec::new();
    for checkpoint in &plan.checkpoints {
        course.train(checkpoint.saturating_sub(1), &|| ()).expect("the text");
        let before = course.state().clone();
        course.train(*checkpoint, &|| ()).expect("the text");
        losses.push(course.held_out_loss().expect("the text"));
        for desk in &mut desks {
            desk.checkpoint(&course, &before, plan.leaves);
            done(&format!("grid_bits {}, round {checkpoint}, {}", plan.grid_bits, desk.profile.name()));
        }
    }
    let finish = |desk: Desk| {
        let (profile, members_only) = (desk.profile, desk.members_only);
        Gathered { profile, members_only, evidence: desk.finish(&manifest, &losses) }
    };
    Ok(desks.into_iter().map(finish).collect())
}

/// What a profile's tolerances catch.
pub struct Gathered {
    /// Of whose leaves.
    pub profile: Profile,
    /// Whether the tolerances are those of `muster-verifier calibrate --members-only`.
    pub members_only: bool,
    /// Or why it has none.
    pub evidence: Result<Evidence, Misuse>,
}

/// Tolerances that do nothing: rows do not depend on them.
fn any(manifest: &Manifest, profile: Profile) -> Manifest {
    tolerant(manifest, profile, Tolerance::none())
}

impl Desk {
    fn new(
        profile: Profile,
        members_only: bool,
        plan: &Plan,
        manifest: &Arc<Manifest>,
    ) -> Result<Self, Misuse> {
        let (machines, _) = at_hand(profile, plan.threads, &plan.devices, members_only, manifest)?;
        let cheap = LeafComputer::torch(Profile::Bf16, Device::Cpu, 1)?;
        let cheats = Cheat::ALL.into_iter().filter(|cheat| cheat.is_one(profile));
        Ok(Self {
            profile,
            members_only,
            measured: Measured::new(&manifest.model, machines.len()),
            trial: ToleranceTrial::new(manifest, &machines),
            machines,
            cheap,
            honest: Vec::new(),
            cheats: cheats.map(|cheat| (cheat, Vec::new())).collect(),
        })
    }

    /// The machine that audits is the last one that takes all windows at once, the one that cheats the first of libtorch.
    fn checkpoint(&mut self, course: &Course, before: &State, leaves: u64) {
        for leaf in 0..leaves {
            let passage = course.passage(leaf).expect("the text");
            let all = computed(&mut self.machines, course.manifest(), &course.job(&passage));
            self.measured.compare(&all);
        }
        self.trial.checkpoint();
        for (_, checkpoints) in &mut self.cheats {
            checkpoints.push(Vec::new());
        }
        for leaf in leaves..2 * leaves {
            let freeze = beacon(leaf << 32 | u64::from(course.state().step()));
            let probe = Probe::new(&any(course.manifest(), self.profile), &freeze, &beacon(leaf));
            let passage = course.passage(leaf).expect("the text");
            let job = course.job(&passage);
            let all = computed(&mut self.machines, course.manifest(), &job);
            let rows = self.trial.add(&probe, &all);
            for (number, said) in rows.iter().enumerate() {
                self.honest.extend(rows[..number].iter().map(|own| (freeze, own.clone(), said.clone())));
            }
            let auditor = all.iter().rposition(|(_, loss)| loss.is_some()).unwrap_or_default();
            let own = &rows[auditor];
            for (cheat, checkpoints) in &mut self.cheats {
                let machine = if *cheat == Cheat::Bf16Products {
                    &mut self.cheap
                } else {
                    let libtorch = self.machines.iter_mut().find(|machine| !machine.defined);
                    libtorch.expect("libtorch on one device at least")
                };
                let (q, loss) = cheating(*cheat, machine, course, before, leaf, &passage);
                let said = probe.row(&q, loss.unwrap_or(own.loss));
                checkpoints.last_mut().expect("this one").push((freeze, own.clone(), said));
            }
        }
    }

    fn finish(self, manifest: &Manifest, losses: &[f64]) -> Result<Evidence, Misuse> {
        let Settled { manifest: with, judged, wider } =
            settle(manifest, self.profile, &self.measured, &self.trial)?;
        let judge = |(freeze, own, said): &Pair| {
            // The seeds are in the rows already.
            Probe::new(&with, freeze, &Digest::default()).deviation(own, said)
        };
        let all = |pairs: &Vec<Pair>| pairs.iter().map(judge).collect::<Vec<f64>>();
        let cheats = self.cheats.iter();
        Ok(Evidence {
            honest: all(&self.honest),
            cheats: cheats.map(|(cheat, pairs)| (*cheat, pairs.iter().map(all).collect())).collect(),
            judged,
            machines: self.machines.into_iter().map(|machine| machine.name).collect(),
            measured: self.measured,
            tolerance: (with.tolerance, wider),
            losses: losses.to_vec(),
        })
    }
}

/// A leaf as a cheat computes it. Its dither is the leaf's own, whatever the gradient is of.
fn cheating(
    cheat: Cheat,
    machine: &mut LeafComputer,
    course: &Course,
    before: &State,
    leaf: u64,
    passage: &Passage,
) -> (Vec<i32>, Option<i64>) {
    let job = course.job(passage);
    let rounded = |round: &dyn Fn(f32, f32) -> f32| {
        let mut state = job.state.clone();
        for tensor in Layout::of(&course.manifest().model).tensors() {
            let weights = &mut state.parameters[tensor.range()];
            let step = weights.iter().fold(0f32, |most, weight| most.max(weight.abs())) / 127.0;
            weights.iter_mut().for_each(|weight| *weight = round(*weight, step));
        }
        state
    };
    let mut windows = passage.windows.clone();
    let mut state = None;
    match cheat {
        Cheat::Half => windows.truncate(windows.len() / 2),
        Cheat::Dropped => windows.truncate(windows.len() - 1),
        Cheat::OtherData => windows = course.passage(leaf + 1_000_000).expect("the text").windows,
        // The last token of a window is a target only.
        Cheat::Label => {
            if let Some(token) = windows.first_mut().and_then(|window| window.last_mut()) {
                *token = if *token == u32::from(b' ') { b'e'.into() } else { b' '.into() };
            }
        }
        Cheat::Stale => {
            let exponents = job.state.exponents.clone();
            state = Some(State { exponents, ..before.clone() });
        }
        Cheat::Int8 => {
            state = Some(rounded(&|weight, step| {
                if step > 0.0 { (weight / step).round_ties_even() * step } else { weight }
            }));
        }
        Cheat::Bf16 => {
            state = Some(rounded(&|weight, _| {
                let bits = weight.to_bits();
                f32::from_bits(bits.saturating_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
            }));
        }
        Cheat::Bf16Products => {}
    }
    let state = state.as_ref().unwrap_or(job.state);
    let job = LeafJob { state, windows: &windows, round_seed: job.round_seed, leaf: Leaf(leaf) };
    machine.leaf(course.manifest(), &job)
}

impl Evidence {
    /// Rows of the table in Markdown.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |(cheat, checkpoints): &(Cheat, Vec<Vec<f64>>)| {
            let mut cells = vec![cheat.name().to_owned()];
            cells.extend(checkpoints.iter().map(|leaves| {
                let least = leaves.iter().copied().fold(f64::INFINITY, f64::min);
                format!("{}, {}", shown(least), shown(median(leaves)))
            }));
            cells.push(verdict(&checkpoints.concat()));
            cells
        };
        self.cheats.iter().map(row).collect()
    }

    /// What honest leaves are, in a sentence.
    pub fn honest(&self) -> String {
        let count = |limit: f64| self.honest.iter().filter(|deviation| **deviation > limit).count();
        let pairs = self.machines.len() * (self.machines.len() - 1) / 2;
        let leaves = self.judged.leaves.len();
        let bound = |limit: f64| {
            let found = self.judged.leaves.iter().filter(|deviation| **deviation > limit).count();
            100.0 * exceeds_at_most(leaves, found)
        };
        format!(
            "Honest: {pairs} pairs of machines on {leaves} leaves that were not calibrated with; largest deviation {:.2}; {} pairs \
             above {SUSPECT} (suspect), {} above {WRONG} (wrong: false positives). With confidence 95 %, at most {:.1} % of \
             honest leaves are suspect in any group or the loss, and at most {:.1} % wrong.",
            largest(&self.honest),
            count(SUSPECT),
            count(WRONG),
            bound(SUSPECT),
            bound(WRONG),
        )
    }

    /// The tolerances of the groups, and of the loss.
    pub fn tolerances(&self) -> String {
        let (Tolerance { groups, loss }, wider) = &self.tolerance;
        let range = groups
            .iter()
            .map(|bound| bound.value())
            .fold([f32::INFINITY, 0.0], |[low, high], bound| [low.min(bound), high.max(bound)]);
        format!(
            "{:.1e} to {:.1e} in {} groups, loss {:.1e}{}",
            range[0],
            range[1],
            groups.len(),
            loss.value(),
            if *wider > 1.0 {
                format!(" ({wider:.2} times what leaves need, for totals)")
            } else {
                String::new()
            }
        )
    }
}

fn shown(deviation: f64) -> String {
    if deviation >= 100.0 { format!("{deviation:.0}") } else { format!("{deviation:.2}") }
}

/// What an auditor makes of such deviations.
fn verdict(leaves: &[f64]) -> String {
    let share = |limit: f64| leaves.iter().filter(|leaf| **leaf > limit).count() as f64 / leaves.len() as f64;
    let (wrong, suspect) = (share(WRONG), share(SUSPECT));
    if wrong == 1.0 {
        "always caught".to_owned()
    } else if wrong > 0.0 {
        format!("caught at {:.0} %, suspect at {:.0} %", 100.0 * wrong, 100.0 * suspect)
    } else if suspect > 0.0 {
        format!("suspect only, at {:.0} %", 100.0 * suspect)
    } else {
        "**not claimable**".to_owned()
    }
}
