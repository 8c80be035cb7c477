//! This machine's own address, as others may see it.

use std::net::{IpAddr, UdpSocket};

/// The own address on the way out; none without a route. No packet is sent: connecting a UDP socket only looks the
/// route up. Behind a translating router this is the inner address.
pub fn outward(v4: bool) -> Option<IpAddr> {
    // Addresses that are set aside for documentation: routed like any other, never in use.
    let (own, other) = if v4 { ("0.0.0.0:0", "192.0.2.1:9") } else { ("[::]:0", "[2001:db8::1]:9") };
    let socket = UdpSocket::bind(own).ok()?;
    socket.connect(other).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
