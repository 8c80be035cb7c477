//! Rotary positions, as the versions of `transformers` say them.

use muster_replica::exit::Outcome;
use serde_json::Value;
use toml::Table;

use super::entries::Entries;

/// Since version 5 what is said of positions is one entry; before, only how they are scaled.
const ENTRIES: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// Settings of a decoder's positions.
///
/// # Errors
/// [`muster_replica::exit::Failure`] naming an entry that no run's models have.
pub(super) fn rotary(config: &Entries<'_>, fixed: &mut Table) -> Outcome<()> {
    let mut base = config.real("rope_theta", 10_000.0)?;
    fixed.insert("rope_factor".into(), 1.0.into());
    whole(config)?;
    for entry in ENTRIES {
        let Some(said) = config.within(entry)? else { continue };
        if said.entries.values().any(Value::is_object) {
            let what = "says it for each kind of layers, a run's models have one kind";
            return Err(config.wrong(entry, what));
        }
        base = said.real("rope_theta", base)?;
        whole(&said)?;
        match said.text("rope_type")?.or(said.text("type")?) {
            Some("default") => {}
            None if entry == ENTRIES[0] => {}
            Some("llama3") => scaling(&said, fixed)?,
            other => {
                let other = other.unwrap_or("no rope_type");
                let what = format!(
                    "scales the rotary positions by {other}, a run knows llama3 alone; begin with a model that was trained without"
                );
                return Err(config.wrong(entry, &what));
            }
        }
    }
    fixed.insert("rope_base".into(), base.into());
    Ok(())
}

/// ARITH-75
fn scaling(said: &Entries<'_>, fixed: &mut Table) -> Outcome<()> {
    for (setting, entry) in
        [("rope_factor", "factor"), ("rope_low", "low_freq_factor"), ("rope_high", "high_freq_factor")]
    {
        fixed.insert(setting.into(), said.needed(entry)?.into());
    }
    fixed.insert("rope_original".into(), said.number("original_max_position_embeddings")?.into());
    Ok(())
}

/// Refuses positions that turn a part of each head only.
fn whole(said: &Entries<'_>) -> Outcome<()> {
    let name = "partial_rotary_factor";
    let part = said.real(name, 1.0)?;
    if part == 1.0 { Ok(()) } else { Err(said.wrong(name, &format!("is {part}, a run's models have 1.0"))) }
}
