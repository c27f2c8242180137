//! What a cell and a session cost, beside the bare engine in the same run.
//!
//! - a cell's round trip (`1+1` over the API): back to back, and after 100 ms of idling
//! - a tool call from a cell, one after the other, and 50 at a time
//! - a cold session (request to ready) beside create + start of the same image by the bare engine
//!
//! Machines differ and are noisy: read the ratios.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::pedantic,
    reason = "a benchmark that fails may panic"
)]

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptions, StartContainerOptions};
use std::time::Duration;

mod support;

use support::{Client, Daemon, percentile, timed, times};

const WARM_UP: usize = 200;
const HOT_CELLS: usize = 2_000;
const IDLE_CELLS: usize = 50;
const IDLE: Duration = Duration::from_millis(100);
const COLD_SESSIONS: usize = 15;
const IMAGE: &str = "belljar/base";

fn row(name: &str, sorted: &[Duration]) {
    println!(
        "{name:<44} {:>10.3} {:>10.3} {:>7}",
        percentile(sorted, 50),
        percentile(sorted, 95),
        sorted.len()
    );
}

/// Both give a list of seconds for each call.
const ONE_BY_ONE: &str = "
import time
def took():
    began = time.perf_counter(); session_info(); return time.perf_counter() - began
[took() for _ in range(500)]";
const FIFTY_AT_A_TIME: &str = "
import asyncio, time
async def call(gate):
    async with gate: await tools.aio.session_info()
gate, began = asyncio.Semaphore(50), time.perf_counter()
await asyncio.gather(*(call(gate) for _ in range(10_000)))
[(time.perf_counter() - began) / 10_000]";

fn calls(client: &mut Client, code: &str) -> Vec<Duration> {
    let answer: serde_json::Value = serde_json::from_str(&client.run("bench", code)).expect("JSON");
    let listed = answer["result"]["repr"].as_str().unwrap_or_else(|| panic!("no times: {answer}"));
    let seconds: Vec<f64> = serde_json::from_str(listed).expect("a list of numbers");
    let mut times: Vec<Duration> = seconds.into_iter().map(Duration::from_secs_f64).collect();
    times.sort();
    times
}

fn cell(client: &mut Client) {
    let answer = client.run("bench", "1+1");
    assert!(answer.contains(r#""repr":"2""#), "{answer}");
}

/// Create + start, and removal outside of the measured time.
fn bare(runtime: &tokio::runtime::Runtime, docker: &Docker, network: &str, count: usize) -> Vec<Duration> {
    times(count, |number| {
        let name = format!("belljar-bench-{}-{number}", std::process::id());
        let body = ContainerCreateBody {
            image: Some(IMAGE.into()),
            cmd: Some(vec!["sleep".into(), "60".into()]),
            host_config: Some(HostConfig { network_mode: Some(network.into()), ..HostConfig::default() }),
            ..ContainerCreateBody::default()
        };
        let time = timed(|| {
            runtime.block_on(async {
                let options =
                    CreateContainerOptions { name: Some(name.clone()), ..CreateContainerOptions::default() };
                docker.create_container(Some(options), body).await.expect("created");
                docker.start_container(&name, None::<StartContainerOptions>).await.expect("started");
            });
        });
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        runtime.block_on(docker.remove_container(&name, Some(options))).expect("removed");
        time
    })
}

fn main() {
    let daemon = Daemon::with_config("");
    let mut client = Client::connect(&daemon.socket());
    let new = |name: &str| format!(r#"{{"name":"{name}","image":"{IMAGE}"}}"#);
    client.request("POST", "/v1/sessions", &new("bench"));
    (0..WARM_UP).for_each(|_| cell(&mut client));

    println!("{:<44} {:>10} {:>10} {:>7}", "", "p50 ms", "p95 ms", "n");
    let hot = times(HOT_CELLS, |_| timed(|| cell(&mut client)));
    row("cell `1+1`, back to back", &hot);
    let idle = times(IDLE_CELLS, |_| {
        std::thread::sleep(IDLE);
        timed(|| cell(&mut client))
    });
    row("cell `1+1`, after 100 ms of idling", &idle);
    row("tool call from a cell, one by one", &calls(&mut client, ONE_BY_ONE));
    let many = calls(&mut client, FIFTY_AT_A_TIME);
    println!(
        "{:<44} {:>10.0} calls a second",
        "tool calls from a cell, 50 at a time",
        1e3 / percentile(&many, 50)
    );
    client.request("DELETE", "/v1/sessions/bench", "");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let docker = runtime
        .block_on(async { Docker::connect_with_defaults().expect("an engine").negotiate_version().await })
        .expect("an engine");
    let cold = times(COLD_SESSIONS, |number| {
        let name = format!("cold{number}");
        let time = timed(|| drop(client.request("POST", "/v1/sessions", &new(&name))));
        client.request("DELETE", &format!("/v1/sessions/{name}"), "");
        time
    });
    row("cold session, ready for its first cell", &cold);
    let bare_none = bare(&runtime, &docker, "none", COLD_SESSIONS);
    row("bare create + start, network none", &bare_none);
    let bare_bridge = bare(&runtime, &docker, "bridge", COLD_SESSIONS);
    row("bare create + start, default network", &bare_bridge);
    println!(
        "\na cold session takes {:.2} times a bare create + start without network (p50)",
        percentile(&cold, 50) / percentile(&bare_none, 50)
    );
}
