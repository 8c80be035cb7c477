//! What a calibration found, for people and for run.toml.

use std::fmt::Write;

use muster_core::manifest::Manifest;
use muster_core::sketch::probe::{SUSPECT, WRONG};

use super::machines::LeafComputer;
use super::measure::{DeviationSummary, Measured, Pair, SamplingPlan};
use super::statistics::{exceeds_at_most, largest, median};
use super::trial::{Settled, TotalDeviation};

/// Everything that there is to tell.
pub struct Report<'a> {
    /// Profile and tolerances, and new leaves.
    pub settled: &'a Settled,
    /// What computed.
    pub machines: &'a [LeafComputer],
    /// When and how much.
    pub plan: &'a SamplingPlan,
    /// What they are apart.
    pub measured: &'a Measured,
}

impl Report<'_> {
    /// The section of run.toml, below a comment with everything that it follows from.
    pub fn file(&self) -> String {
        let mut text = String::new();
        self.comment().lines().for_each(|line| {
            let _ = writeln!(text, "# {line}");
        });
        let text = text.replace("# \n", "#\n");
        let Manifest { profile, tolerance, .. } = &self.settled.manifest;
        let bounds: Vec<String> =
            tolerance.groups.iter().map(|bound| format!("{:e}", bound.value())).collect();
        format!(
            "{text}\n[arithmetic]\nprofile = \"{}\"\ntolerance = [{}]\nloss_tolerance = {:e}\ncalibrated_rounds = {}\n",
            profile.name(),
            bounds.join(", "),
            tolerance.loss.value(),
            self.plan.rounds()
        )
    }

    /// What is most worth knowing.
    pub fn lines(&self) -> Vec<String> {
        vec![self.sample(), self.fresh(), self.totals()]
    }

    fn comment(&self) -> String {
        let Self { settled, measured, .. } = self;
        let manifest = &settled.manifest;
        let (model, training) = (&manifest.model, &manifest.training);
        let mut text = format!(
            "What honest machines are apart, measured by muster-verifier {} (calibrate) on {} {}.\n\
             For models of {} parameters, leaves of {} windows of {} tokens, grid_bits {}: other ones need their own.\n\n",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::ARCH,
            std::env::consts::OS,
            model.parameters(),
            training.leaf_windows,
            model.sequence,
            training.grid_bits
        );
        if !self.machines.iter().any(|machine| machine.defined) {
            let _ = writeln!(
                text,
                "Only what members may use was measured: these tolerances are good on such devices and no others.\n"
            );
        }
        let _ = writeln!(
            text,
            "Machines (libtorch but for `exact`), and the largest deviation of any group from the first one:"
        );
        for (number, machine) in self.machines.iter().enumerate() {
            let _ = writeln!(text, "  {}{}", machine.name, self.beside_first(number));
        }
        let rounds: Vec<String> = self.plan.checkpoints.iter().map(u32::to_string).collect();
        let _ =
            writeln!(text, "Leaves: {} before each of the rounds {}.", self.plan.leaves, rounds.join(", "));
        let _ = writeln!(text, "\nOf each group, each leaf with its widest pair of machines:");
        let _ = writeln!(text, "  group  coefficients   median  99.9 %   largest  of the grid  tolerance");
        for (group, range) in measured.groups.iter().enumerate() {
            let _ = writeln!(text, "  {group:5}  {:12}  {}", range.len(), figures(&measured.spread(group)));
        }
        let _ = writeln!(text, "  loss   {:12}  {}\n", "", figures(&measured.loss()));
        let _ = writeln!(text, "{}\n{}\n{}", self.sample(), self.fresh(), self.totals());
        text
    }

    /// How far a machine is from the first one.
    fn beside_first(&self, number: usize) -> String {
        let pair = self.measured.pairs.iter().find(|pair| pair.machines == [0, number]);
        let Some(Pair { deviations, .. }) = pair else { return String::new() };
        let leaves: Vec<f64> = deviations.iter().map(|groups| largest(groups)).collect();
        let member = if number == 0 || self.machines[number].member { "" } else { ", not for members" };
        format!(": median {:.1e}, largest {:.1e}{member}", median(&leaves), largest(&leaves))
    }

    fn sample(&self) -> String {
        let leaves = self.measured.leaves();
        let exceeded = leaves - (0.999 * leaves as f64).ceil() as usize;
        format!(
            "Sample: {leaves} leaves. With confidence 95 %, at most {:.1} % of honest leaves exceed a group's tolerance \
             (suspect above {SUSPECT}, wrong above {WRONG} of them).",
            100.0 * exceeds_at_most(leaves, exceeded)
        )
    }

    /// Of new leaves at every checkpoint: each is judged as a whole, by all of its groups and its loss.
    fn fresh(&self) -> String {
        let leaves = &self.settled.judged.leaves;
        let [suspect, wrong] = [SUSPECT, WRONG].map(|limit| {
            let found = leaves.iter().filter(|leaf| **leaf > limit).count();
            (found, 100.0 * exceeds_at_most(leaves.len(), found))
        });
        format!(
            "Tried: {} new leaves before the same rounds, by all groups and the loss, through projections; largest deviation \
             {:.2} tolerances, mean {:.2}; {} suspect, {} wrong; with confidence 95 %, at most {:.1} % of honest leaves are \
             suspect, and at most {:.1} % wrong.",
            leaves.len(),
            largest(leaves),
            leaves.iter().sum::<f64>() / leaves.len().max(1) as f64,
            suspect.0,
            wrong.0,
            suspect.1,
            wrong.1
        )
    }

    fn totals(&self) -> String {
        let totals = &self.settled.judged.totals;
        let widest = totals.iter().max_by(|a, b| a.largest.total_cmp(&b.largest));
        let Some(TotalDeviation { machines: [own, said], leaves: m, last, largest }) = widest else {
            return "Totals: there is one machine only that members may have.".to_owned();
        };
        if *last == 0.0 {
            return format!("Totals of {m} leaves: all within what the grid cannot tell from 0.");
        }
        let wider = if self.settled.wider > 1.0 {
            format!(
                "Tolerances are {:.2} times what leaves need, for totals of machines that lean. ",
                self.settled.wider
            )
        } else {
            String::new()
        };
        format!(
            "{wider}Totals of up to {m} leaves: the widest pair is {} beside {}, {last:.2} at the end, {largest:.2} on the way. \
             If all of that leans the same way, it is {:.2} tolerances a leaf, and totals of {:.0} leaves would be wrong.",
            self.machines[*own].name,
            self.machines[*said].name,
            last / (*m as f64).sqrt(),
            (WRONG / last).powi(2) * *m as f64
        )
    }
}

fn figures(spread: &DeviationSummary) -> String {
    let DeviationSummary { median, quantile, largest, floor } = spread;
    format!("{median:.1e}  {quantile:.1e}  {largest:.1e}      {floor:.1e}    {:.1e}", spread.bound())
}
