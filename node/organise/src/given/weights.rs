//! The tensors of a checkpoint as one flat vector.

use std::collections::BTreeMap;
use std::path::Path;

use muster_core::layout::{Layout, Tensor};
use muster_core::manifest::{Family, Model};
use muster_replica::exit::{Failure, Outcome};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::hugging_face::{KEY_BIAS, TOKEN_TYPES, saved_shape};

/// Names that are said in one sentence.
const NAMED: usize = 4;
/// The embedding that token types are added to.
const POSITIONS: &str = "albert.embeddings.position_embeddings.weight";

/// The parameters of the file's bytes, in the canonical layout. Whatever type they are saved in, each is exactly the
/// `f32` that is kept.
///
/// # Errors
/// [`Failure`] naming the file, the tensor and what is wrong with it.
pub(super) fn parameters(path: &Path, file: &[u8], model: &Model, layout: &Layout) -> Outcome<Vec<f32>> {
    let wrong = |what: String| Failure::environment(format!("{}: {what}", path.display()));
    // The crate refuses tensors that overlap, leave gaps, or do not end with the file.
    let tensors = SafeTensors::deserialize(file)
        .map_err(|error| wrong(format!("is not a complete safetensors file ({error})")))?;
    let mut saved = Saved { views: tensors.iter().map(|(name, view)| (name.to_owned(), view)).collect() };
    let twins = twins(model);
    let own = layout.tensors().iter().map(|tensor| tensor.name.as_str());
    let besides: &[&str] = match model.family {
        Family::Decoder(_) | Family::Mixture(_) => &[],
        Family::Albert(_) => &[TOKEN_TYPES, KEY_BIAS],
    };
    let there =
        |name: &&str| saved.has(name) || twins.iter().any(|(first, twin)| first == name && saved.has(twin));
    let missing: Vec<&str> = own.chain(besides.iter().copied()).filter(|name| !there(name)).collect();
    if !missing.is_empty() {
        return Err(wrong(format!("lacks {}", named(&missing))));
    }
    let mut parameters = vec![0.0; layout.parameters()];
    for tensor in layout.tensors() {
        let twin = twins.iter().find(|(first, _)| *first == tensor.name).map(|(_, twin)| *twin);
        let values = saved.take(tensor, twin).map_err(wrong)?;
        parameters[tensor.range()].copy_from_slice(&values);
    }
    if let Family::Mixture(_) = &model.family {
        saved.attention_biases(layout).map_err(wrong)?;
    }
    if let Family::Albert(albert) = &model.family {
        let (narrow, width) = (albert.embedding as usize, model.width as usize);
        let positions = layout.tensors().iter().find(|tensor| tensor.name == POSITIONS).map(Tensor::range);
        let types = saved.token_types(narrow).map_err(wrong)?;
        add_type(&mut parameters[positions.unwrap_or_default()], &types);
        saved.key_bias(width).map_err(wrong)?;
    }
    if let Some(index) = parameters.iter().position(|value| !value.is_finite()) {
        return Err(wrong(format!("{POSITIONS} and {TOKEN_TYPES} add up to {}", parameters[index])));
    }
    if saved.views.is_empty() {
        return Ok(parameters);
    }
    let surplus: Vec<&str> = saved.views.keys().map(String::as_str).collect();
    Err(wrong(format!("holds {}, which this model does not have", named(&surplus))))
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

/// Tensors that are not used yet.
struct Saved<'a> {
    views: BTreeMap<String, TensorView<'a>>,
}

impl Saved<'_> {
    fn has(&self, name: &str) -> bool {
        self.views.contains_key(name)
    }

    /// The values of a tensor, saved under its name, its second one, or both alike.
    fn take(&mut self, tensor: &Tensor, twin: Option<&str>) -> Result<Vec<f32>, String> {
        let shape = saved_shape(tensor);
        let mut found: Option<Vec<f32>> = None;
        for name in [Some(tensor.name.as_str()), twin].into_iter().flatten() {
            let Some(view) = self.views.remove(name) else { continue };
            let values = values(name, &view, &shape)?;
            let alike =
                |other: &Vec<f32>| other.iter().map(|x| x.to_bits()).eq(values.iter().map(|x| x.to_bits()));
            if !found.as_ref().is_none_or(alike) {
                return Err(format!(
                    "{name} differs from {}, which it is the same as in this model",
                    tensor.name
                ));
            }
            found = Some(values);
        }
        found.ok_or_else(|| format!("lacks {}", tensor.name))
    }

    /// Biases of queries, keys and values, which a mixture of `transformers` has unless its config says otherwise: zeros
    /// change nothing, and other values have no place in a run's model.
    fn attention_biases(&mut self, layout: &Layout) -> Result<(), String> {
        for tensor in layout.tensors() {
            let biased = ["q_proj.", "k_proj.", "v_proj."];
            let matrix = tensor.name.strip_suffix("weight");
            let matrix = matrix.filter(|matrix| biased.iter().any(|end| matrix.ends_with(end)));
            let Some(name) = matrix.map(|matrix| format!("{matrix}bias")) else { continue };
            let Some(view) = self.views.remove(&name) else { continue };
            let bias = values(&name, &view, &tensor.shape[..1])?;
            if bias.iter().any(|value| *value != 0.0) {
                return Err(format!(
                    "{name} is not zero, a run's models have no biases of queries, keys and values"
                ));
            }
        }
        Ok(())
    }

    /// Token type 0: every token of a run is of it.
    fn token_types(&mut self, narrow: usize) -> Result<Vec<f32>, String> {
        let view = self.views.remove(TOKEN_TYPES).ok_or_else(|| format!("lacks {TOKEN_TYPES}"))?;
        let rows = view.shape().first().copied().unwrap_or_default().max(1);
        let mut values = values(TOKEN_TYPES, &view, &[rows, narrow])?;
        values.truncate(narrow);
        Ok(values)
    }

    /// The key bias adds the same to all scores of a query, and so changes nothing; it is only looked at.
    fn key_bias(&mut self, width: usize) -> Result<(), String> {
        let view = self.views.remove(KEY_BIAS).ok_or_else(|| format!("lacks {KEY_BIAS}"))?;
        values(KEY_BIAS, &view, &[width]).map(drop)
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
