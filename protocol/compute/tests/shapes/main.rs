//! Devices beside the processor, on leaves of drawn shapes of every family: no coefficient, grid integer or loss differs by a bit.
//! Without a device nothing is tried, and the test says so. `PROPTEST_CASES=1000` tries more leaves than sixteen.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[allow(dead_code)]
mod drawn;

use muster_compute::devices;
use proptest::test_runner::TestRunner;

#[test]
fn arith_2_devices_have_the_processors_bits_on_leaves_of_any_shape() {
    let count = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    let found = devices();
    if found.is_empty() {
        eprintln!("no device is found: nothing was tried");
    }
    for device in found {
        let mut runner = TestRunner::new(drawn::cases(count.unwrap_or(16)));
        let tried =
            drawn::compare(device, 2, &mut runner).unwrap_or_else(|why| panic!("{}: {why}", device.says()));
        eprintln!("{}: {:?}, {} numbers", device.says(), tried.families, tried.numbers);
    }
}
