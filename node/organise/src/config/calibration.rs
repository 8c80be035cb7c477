//! Tolerances that `muster-verifier calibrate` measured, as part of the settings.

use std::path::Path;

use muster_core::error::Misuse;
use muster_core::layout::Layout;
use muster_replica::exit::{Failure, Outcome};
use serde::Deserialize;

use super::arithmetic::Arithmetic;
use super::model::FamilySetting;
use super::{Settings, parse};

/// Most rounds of a run for each round over which its tolerances were measured: `spec/tolerance.md` says why.
const BEYOND: u32 = 2;

/// What `muster-verifier calibrate` writes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Calibration {
    arithmetic: Arithmetic,
}

impl Settings {
    /// Replaces the arithmetic by that of a calibration; returns the text of the settings, changed alike.
    ///
    /// # Errors
    /// [`Failure`] naming the file: it is no calibration, or one of a model with other tensor groups, or the model is a
    /// mixture, which has no tolerance.
    pub fn calibrate(&mut self, text: &str, path: &Path, calibration: &str) -> Outcome<String> {
        let Calibration { arithmetic } = parse(path, calibration)?;
        let in_file = |why: String| Failure::usage(format!("{}: {why}", path.display()));
        if self.model.family == FamilySetting::Mixture {
            return Err(in_file(
                "a mixture of experts is trained in \"exact\": make the run without it".into(),
            ));
        }
        let model = self.checked_model().map_err(|misuse| in_file(misuse.to_string()))?;
        model.check().map_err(|misuse| in_file(misuse.to_string()))?;
        let (found, groups) = (arithmetic.tolerance.len(), Layout::of(&model).groups().len());
        // By position: a tolerance of another model would be some other group's.
        if found != groups {
            return Err(in_file(format!(
                "arithmetic.tolerance has {found} values, and this model {groups} tensor groups: calibrate this one"
            )));
        }
        self.arithmetic = arithmetic;
        let mut within = false;
        let others = text.lines().filter(|line| {
            let line = line.trim_start();
            within = if line.starts_with('[') { line.starts_with("[arithmetic]") } else { within };
            !within
        });
        let others: Vec<&str> = others.collect();
        let text = format!("{}\n\n{calibration}", others.join("\n"));
        // Dropping lines is no parser: settings may write the table in another way, which is found out here.
        match Self::parse(path, &text) {
            Ok(settings) if settings.arithmetic == self.arithmetic => Ok(text),
            _ => Err(in_file(
                "does not fit the settings: write their arithmetic as a section [arithmetic]".into(),
            )),
        }
    }

    /// Whether tolerances were measured over enough rounds of training for this run. If the settings do not say over how
    /// many, they are taken as they are.
    ///
    /// # Errors
    /// [`Misuse`] with what to do about it.
    pub fn measured_for_long(&self) -> Result<(), Misuse> {
        let (rounds, measured) = (self.training.rounds, self.arithmetic.calibrated_rounds);
        if measured == 0 || rounds <= measured.saturating_mul(BEYOND) {
            return Ok(());
        }
        Err(Misuse(format!(
            "training.rounds is {rounds}, and tolerances were measured over {measured}: honest machines drift apart as training \
             goes on, and one that is too far is banned. Train {} rounds at most, or calibrate with --rounds {} or more",
            measured.saturating_mul(BEYOND),
            rounds.div_ceil(BEYOND)
        )))
    }
}
