//! The tensors of a checkpoint as one flat vector.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use muster_core::layout::{Layout, Tensor};
use muster_core::manifest::{Family, Model};
use muster_replica::exit::{Failure, Outcome};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::file::bounded;
use super::shards::{Shard, index, shards};
use crate::hugging_face::{KEY_BIAS, TOKEN_TYPES, saved_shape};

/// Names that are said in one sentence.
const NAMED: usize = 4;
/// Bytes of a file of tensors beyond those of its values.
const HEADER_BYTES: u64 = 16 << 20;
/// The embedding that token types are added to.
const POSITIONS: &str = "albert.embeddings.position_embeddings.weight";

/// The parameters of a folder's files, in the canonical layout. Whatever type they are saved in, each is exactly the `f32`
/// that is kept. Of several files one is in memory at a time.
///
/// # Errors
/// [`Failure`] naming the file, the tensor and what is wrong with it.
pub(super) fn parameters(folder: &Path, model: &Model, layout: &Layout) -> Outcome<Vec<f32>> {
    let shards = shards(folder)?;
    let mut saved = Saved::new(model, layout);
    for shard in &shards {
        saved.take_file(shard, &file(shard, model)?)?;
    }
    let whole = match &shards[..] {
        [one] => one.path.clone(),
        _ => index(folder),
    };
    saved.complete().map_err(|what| wrong(&whole, what))
}

/// The bytes of a file of tensors.
fn file(shard: &Shard, model: &Model) -> Outcome<Vec<u8>> {
    let path = &shard.path;
    if !shard.named.is_empty() && !path.exists() {
        let index = path.parent().map(index).unwrap_or_default();
        let what = format!("does not exist, but {} places tensors in it", index.display());
        return Err(wrong(path, format!("{what}; get all files of the checkpoint")));
    }
    // A checked model has no more than limits::PARAMETERS. A file may hold each value twice: what is shared is saved under
    // both names by some.
    bounded(path, model.parameters().saturating_mul(8) + HEADER_BYTES)
}

fn wrong(path: &Path, what: String) -> Failure {
    Failure::environment(format!("{}: {what}", path.display()))
}

/// Second names under which a shared tensor may be saved, too, or instead.
fn twins(model: &Model) -> &'static [(&'static str, &'static str)] {
    match model.decoder() {
        Some(decoder) if decoder.tied => &[("model.embed_tokens.weight", "lm_head.weight")],
        Some(_) => &[],
        None => &[
            ("albert.embeddings.word_embeddings.weight", "predictions.decoder.weight"),
            ("predictions.bias", "predictions.decoder.bias"),
        ],
    }
}

/// Whether a tensor is left out by `transformers`, too: it follows from the config, or is of a head that predicts no tokens.
fn is_left_out(model: &Model, name: &str) -> bool {
    match model.decoder() {
        Some(_) => name.ends_with(".rotary_emb.inv_freq"),
        None => {
            let buffers = ["albert.embeddings.position_ids", "albert.embeddings.token_type_ids"];
            let heads = ["albert.pooler.", "sop_classifier."];
            buffers.contains(&name) || heads.iter().any(|head| name.starts_with(head))
        }
    }
}

/// Adds the embedding of the one token type that a run knows to every position.
///
/// A zero is not added: it would make a zero of a position's −0, and what was exported would not come back.
fn add_type(positions: &mut [f32], of_type: &[f32]) {
    for row in positions.chunks_mut(of_type.len().max(1)) {
        for (value, add) in row.iter_mut().zip(of_type).filter(|(_, add)| **add != 0.0) {
            *value += add;
        }
    }
}

/// Tensors that were taken so far.
struct Saved<'a> {
    model: &'a Model,
    layout: &'a Layout,
    parameters: Vec<f32>,
    /// Names that were seen, and those of them that no model here has.
    seen: BTreeSet<String>,
    surplus: BTreeSet<String>,
    /// Token type 0: every token of a run is of it.
    token_type: Vec<f32>,
    by_name: BTreeMap<&'a str, &'a Tensor>,
}

impl<'a> Saved<'a> {
    fn new(model: &'a Model, layout: &'a Layout) -> Self {
        let by_name = layout.tensors().iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let parameters = vec![0.0; layout.parameters()];
        let (seen, surplus, token_type) = Default::default();
        Self { model, layout, parameters, seen, surplus, token_type, by_name }
    }

    /// Takes the tensors of a file.
    fn take_file(&mut self, Shard { path, named }: &Shard, file: &[u8]) -> Outcome<()> {
        let wrong = |what| wrong(path, what);
        // The crate refuses tensors that overlap, leave gaps, or do not end with the file.
        let tensors = SafeTensors::deserialize(file)
            .map_err(|error| wrong(format!("is not a complete safetensors file ({error}); get it again")))?;
        let views: BTreeMap<String, TensorView<'_>> =
            tensors.iter().map(|(name, view)| (name.to_owned(), view)).collect();
        let elsewhere: Vec<&str> =
            named.iter().map(String::as_str).filter(|name| !views.contains_key(*name)).collect();
        if !elsewhere.is_empty() {
            let what = format!("lacks {}, which the index places in it", self::named(&elsewhere));
            return Err(wrong(format!("{what}; get the checkpoint again")));
        }
        let model = self.model;
        for (name, view) in views.into_iter().filter(|(name, _)| !is_left_out(model, name)) {
            self.take(&name, &view).map_err(wrong)?;
            if !self.seen.insert(name.clone()) {
                return Err(wrong(format!("holds {name}, and so does another file of this checkpoint")));
            }
        }
        Ok(())
    }

    /// Takes a tensor, saved under its name, its second one, or both alike.
    fn take(&mut self, name: &str, view: &TensorView<'_>) -> Result<(), String> {
        let twin = twins(self.model).iter().find(|(first, twin)| [*first, *twin].contains(&name));
        let first = twin.map_or(name, |(first, _)| *first);
        let Some(tensor) = self.by_name.get(first).copied() else { return self.take_beside(name, view) };
        let values = values(name, view, &saved_shape(tensor))?;
        let own = &mut self.parameters[tensor.range()];
        if let Some((first, twin)) = twin
            && [first, twin].iter().any(|other| **other != name && self.seen.contains(**other))
            && !own.iter().map(|x| x.to_bits()).eq(values.iter().map(|x| x.to_bits()))
        {
            return Err(format!("{twin} differs from {first}, which it is the same as in this model"));
        }
        own.copy_from_slice(&values);
        Ok(())
    }

    /// Looks at a tensor that a run's model does not have.
    fn take_beside(&mut self, name: &str, view: &TensorView<'_>) -> Result<(), String> {
        match &self.model.family {
            Family::Albert(albert) if name == TOKEN_TYPES => {
                let (narrow, rows) = (albert.embedding as usize, view.shape().first().copied());
                self.token_type = values(name, view, &[rows.unwrap_or_default().max(1), narrow])?;
                self.token_type.truncate(narrow);
            }
            // The key bias adds the same to all scores of a query, and so changes nothing; it is only looked at.
            Family::Albert(_) if name == KEY_BIAS => {
                values(name, view, &[self.model.width as usize])?;
            }
            Family::Mixture(_) if self.biased(name).is_some() => self.check_bias(name, view)?,
            _ => drop(self.surplus.insert(name.to_owned())),
        }
        Ok(())
    }

    /// The matrix of queries, keys or values that a bias has this name for.
    fn biased(&self, name: &str) -> Option<&'a Tensor> {
        let matrix = name.strip_suffix("bias")?;
        let end = ["q_proj.", "k_proj.", "v_proj."].iter().any(|end| matrix.ends_with(end));
        self.by_name.get(format!("{matrix}weight").as_str()).filter(|_| end).copied()
    }

    /// Biases of queries, keys and values, which a mixture of `transformers` has unless its config says otherwise: zeros
    /// change nothing, and other values have no place in a run's model.
    fn check_bias(&self, name: &str, view: &TensorView<'_>) -> Result<(), String> {
        let rows = self.biased(name).map_or(0, |matrix| matrix.shape[0]);
        if values(name, view, &[rows])?.iter().any(|value| *value != 0.0) {
            return Err(format!(
                "{name} is not zero, a run's mixtures have no biases of queries, keys and values"
            ));
        }
        Ok(())
    }

    /// The parameters, once all files are taken.
    fn complete(mut self) -> Result<Vec<f32>, String> {
        let own = self.layout.tensors().iter().map(|tensor| tensor.name.as_str());
        let besides: &[&str] = match self.model.family {
            Family::Decoder(_) | Family::Mixture(_) | Family::Variant(_) => &[],
            Family::Albert(_) => &[TOKEN_TYPES, KEY_BIAS],
        };
        let twins = twins(self.model);
        let there = |name: &&str| {
            let twin = |(first, twin): &(&str, &str)| first == name && self.seen.contains(*twin);
            self.seen.contains(*name) || twins.iter().any(twin)
        };
        let missing: Vec<&str> = own.chain(besides.iter().copied()).filter(|name| !there(name)).collect();
        if !missing.is_empty() {
            return Err(format!("lacks {}", named(&missing)));
        }
        if let Some(positions) = self.by_name.get(POSITIONS) {
            add_type(&mut self.parameters[positions.range()], &self.token_type);
        }
        if let Some(index) = self.parameters.iter().position(|value| !value.is_finite()) {
            return Err(format!("{POSITIONS} and {TOKEN_TYPES} add up to {}", self.parameters[index]));
        }
        if self.surplus.is_empty() {
            return Ok(self.parameters);
        }
        let surplus: Vec<&str> = self.surplus.iter().map(String::as_str).collect();
        Err(format!("holds {}, which this model does not have", named(&surplus)))
    }
}

/// The values of a tensor of this shape, all finite.
fn values(name: &str, view: &TensorView<'_>, shape: &[usize]) -> Result<Vec<f32>, String> {
    if view.shape() != shape {
        return Err(format!("{name} has shape {:?}, this model has {shape:?}", view.shape()));
    }
    let data = view.data();
    let halves = || data.as_chunks().0.iter().map(|two| u16::from_le_bytes(*two));
    let values: Vec<f32> = match view.dtype() {
        Dtype::F32 => muster_core::state::reals(data),
        Dtype::BF16 => halves().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect(),
        Dtype::F16 => halves().map(widened).collect(),
        other => return Err(format!("{name} has values of type {other}, only F32, BF16 and F16 are taken")),
    };
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(format!("{name} has {} at place {index}, no number to begin with", values[index])),
        None => Ok(values),
    }
}

/// A binary16 as the f32 of the same value.
fn widened(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    match exponent {
        // Each factor is exact, and so is the product: 11 bits, and no exponent near the ends of f32.
        0 => sign * fraction * f32::from_bits((127 - 24) << 23),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + fraction) * f32::from_bits(((127 + exponent - 25) as u32) << 23),
    }
}

fn named(names: &[&str]) -> String {
    let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_widened_exactly() {
        let two = |exponent: i32| 2f64.powi(exponent);
        for bits in 0..=u16::MAX {
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let size = match exponent {
                0 => fraction * two(-24),
                31 => {
                    if fraction == 0.0 {
                        f64::INFINITY
                    } else {
                        f64::NAN
                    }
                }
                _ => (1.0 + fraction / 1024.0) * two(exponent - 15),
            };
            let expected = if bits >> 15 == 1 { -size } else { size };
            let found = f64::from(widened(bits));
            assert!(
                found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                "{bits:04x}"
            );
        }
    }

    #[test]
    fn a_zero_is_not_added() {
        let mut positions = [-0.0, 1.0, -0.0, 2.0];
        add_type(&mut positions, &[0.0, -0.0]);
        assert_eq!(positions.map(f32::to_bits), [-0.0, 1.0, -0.0, 2.0].map(f32::to_bits));
        add_type(&mut positions, &[0.5, -1.0]);
        assert_eq!(positions, [0.5, 0.0, 0.5, 1.0]);
    }
}
