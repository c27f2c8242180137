//! Requests to the daemon of a test: HTTP over its socket, and what tests ask for most.

use serde_json::{Value, json};
use std::os::unix::net::UnixStream;

use super::kernels::{self, Image};
use super::matrix::rest_after_a_cell;
use super::{Daemon, Response, http, jails, users};

impl Daemon {
    /// Connects as the test's own user or, where suites run again as another user, as that one.
    pub fn connect(&self) -> std::io::Result<UnixStream> {
        match self.user.filter(|_| self.jailed) {
            Some(user) => users::connect_as(user, &self.socket()),
            None => UnixStream::connect(self.socket()),
        }
    }

    /// One HTTP request over the socket.
    pub fn http(&self, method: &str, path: &str, body: &[u8]) -> Response {
        self.http_with(method, path, &[], body)
    }

    pub fn http_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        http::request(self.connect().expect("the daemon serves"), method, path, headers, body)
    }

    /// Makes a session; panics with the problem if it cannot.
    #[track_caller]
    pub fn session(&self, name: &str, request: Value) -> Value {
        let mut request = if self.jailed { jails::without_image(request) } else { request };
        if request.get("image").is_none() {
            kernels::give(self.home(), self.owner(), Image::Default);
        }
        request["name"] = json!(name);
        self.http("POST", "/v1/sessions", request.to_string().as_bytes()).expect_status(201)
    }

    /// Runs a cell and gives its `ExecutionResult`.
    #[track_caller]
    pub fn run(&self, session: &str, code: &str) -> Value {
        self.run_with(session, json!({ "code": code }))
    }

    /// The same, with the whole request.
    #[track_caller]
    pub fn run_with(&self, session: &str, request: Value) -> Value {
        let path = format!("/v1/sessions/{session}/cells?wait=true");
        let result = self.http("POST", &path, request.to_string().as_bytes()).expect_status(200);
        rest_after_a_cell();
        result
    }

    /// All events of a session so far.
    pub fn events(&self, session: &str, after: u64) -> Vec<Value> {
        let response =
            self.http("GET", &format!("/v1/sessions/{session}/events?follow=false&after={after}"), b"");
        let text = response.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}
