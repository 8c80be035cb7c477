//! How far the real gradients of machines are apart, tensor by tensor, before the grid.

use muster_compute::Device;
use muster_core::error::Misuse;
use muster_core::layout::Layout;
use muster_core::manifest::Profile;
use muster_verifier::calibrate::course::Course;
use muster_verifier::calibrate::machines::{LeafComputer, at_hand};
use muster_verifier::calibrate::statistics::{largest, median};

use super::cheats::Plan;
use super::setting::run;
use crate::harm::markdown;

/// Leaves that are compared.
const LEAVES: u64 = 8;

/// Two machines of a profile, and what of each leaf and tensor they are apart.
struct Column {
    head: String,
    profile: usize,
    machines: [usize; 2],
    /// By leaf, by tensor; the last one is the whole gradient.
    distances: Vec<Vec<f64>>,
}

/// The table at the last checkpoint.
///
/// # Errors
/// [`Misuse`] without libtorch.
pub fn table(plan: &Plan) -> Result<String, Misuse> {
    let rounds = plan.checkpoints.last().copied().unwrap_or_default();
    let (manifest, dataset) = run(&plan.size, plan.grid_bits, rounds);
    let mut profiles: Vec<Vec<LeafComputer>> = Vec::new();
    let mut columns = Vec::new();
    for profile in &plan.profiles {
        let (machines, _) = at_hand(*profile, plan.threads, &plan.devices, false, &manifest)?;
        columns.extend(beside(*profile, profiles.len(), &machines));
        profiles.push(machines);
    }
    let mut course = Course::begin(manifest.clone(), dataset, plan.threads)?;
    course.train(rounds, &|| ()).expect("the text");
    let layout = Layout::of_run(&manifest);
    for leaf in 0..LEAVES {
        let passage = course.passage(leaf).expect("the text");
        let job = course.job(&passage);
        let gradients = profiles.iter_mut().map(|machines| {
            machines.iter_mut().map(|machine| machine.gradient(&manifest, &job)).collect::<Vec<_>>()
        });
        let gradients: Vec<Vec<Vec<f32>>> = gradients.collect();
        for Column { profile, machines: [own, said], distances, .. } in &mut columns {
            let (own, said) = (&gradients[*profile][*own], &gradients[*profile][*said]);
            let tensors =
                layout.tensors().iter().map(|tensor| tensor.range()).chain(std::iter::once(0..own.len()));
            distances.push(tensors.map(|range| relative(&own[range.clone()], &said[range])).collect());
        }
    }
    let names = layout.tensors().iter().map(|tensor| tensor.name.clone()).chain(["**all**".to_owned()]);
    let row = |(number, name): (usize, String)| {
        let mut cells = vec![name];
        cells.extend(columns.iter().map(|column| {
            let leaves: Vec<f64> = column.distances.iter().map(|tensors| tensors[number]).collect();
            format!("{:.1e}, {:.1e}", median(&leaves), largest(&leaves))
        }));
        cells
    };
    let mut head = vec!["tensor"];
    head.extend(columns.iter().map(|column| column.head.as_str()));
    Ok(markdown(&head, names.enumerate().map(row)))
}

/// Of a profile: the defined bits beside one thread and each graphics processor, and these beside one thread; one
/// thread beside all, and on each device the windows at once beside one by one.
fn beside(profile: Profile, number: usize, machines: &[LeafComputer]) -> Vec<Column> {
    let column = |own: usize, said: usize| Column {
        head: format!("{}: {} – {}", profile.name(), machines[own].name, machines[said].name),
        profile: number,
        machines: [own, said],
        distances: Vec::new(),
    };
    let cpu = |machine: &&LeafComputer| machine.device == Device::Cpu;
    let processors = 1 + machines[1..].iter().take_while(cpu).count();
    let mut columns: Vec<Column> = (1..machines.len().min(2)).map(|first| column(0, first)).collect();
    if processors > 2 {
        columns.push(column(1, processors - 2));
        columns.push(column(processors - 2, processors - 1));
    }
    for device in processors..machines.len() {
        if device > processors && machines[device].device == machines[device - 1].device {
            columns.push(column(device - 1, device));
            continue;
        }
        columns.push(column(0, device));
        if processors > 1 {
            columns.push(column(1, device));
        }
    }
    columns.retain(|column| column.machines[0] != column.machines[1]);
    columns
}

/// ‖own − said‖ / ‖own‖.
fn relative(own: &[f32], said: &[f32]) -> f64 {
    let [mut distance, mut length] = [0.0; 2];
    for (own, said) in own.iter().zip(said) {
        distance += (f64::from(*own) - f64::from(*said)).powi(2);
        length += f64::from(*own).powi(2);
    }
    if distance == 0.0 { 0.0 } else { (distance / length).sqrt() }
}
