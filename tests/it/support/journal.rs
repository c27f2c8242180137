//! What the journal's file says, read past the daemon.

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use std::collections::BTreeSet;

use super::Daemon;

pub struct Journal(Connection);

fn uuid(bytes: Vec<u8>) -> String {
    uuid::Uuid::from_slice(&bytes).expect("an id").to_string()
}

impl Journal {
    pub fn of(daemon: &Daemon) -> Self {
        let path = daemon.home().join("journal.db");
        let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let file = file.expect("the journal opens");
        file.busy_timeout(super::SOON).expect("a timeout");
        Self(file)
    }

    fn rows<T>(&self, query: &str, row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>) -> Vec<T> {
        let mut statement = self.0.prepare(query).expect("a query");
        let rows = statement.query_map([], row).expect("rows");
        rows.collect::<rusqlite::Result<_>>().expect("values")
    }

    pub fn integrity(&self) -> String {
        self.0.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a verdict")
    }

    /// Checks that no session, not even a removed one, has a gap in the numbers of its events.
    #[track_caller]
    pub fn assert_gapless(&self) {
        let query = "SELECT session, min(seq), max(seq), count(*) FROM events GROUP BY session";
        for (session, first, last, count) in self.rows(query, |row| {
            Ok((uuid(row.get(0)?), row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, i64>(3)?))
        }) {
            assert_eq!((first, last), (1, count), "2: events of {session} have gaps");
        }
    }

    /// How many events of this kind there are, of all sessions.
    pub fn count(&self, kind: &str) -> i64 {
        let query = "SELECT count(*) FROM events WHERE name = ?1";
        self.0.query_row(query, [kind], |row| row.get(0)).expect("a count")
    }

    /// The request that made a session, as the next daemon would read it.
    pub fn request_of(&self, name: &str) -> Value {
        let query = "SELECT json_extract(record, '$.request') FROM sessions WHERE json_extract(record, '$.name') = ?1";
        let text: String = self.0.query_row(query, [name], |row| row.get(0)).expect("a session");
        serde_json::from_str(&text).expect("JSON")
    }

    pub fn living_sessions(&self) -> Vec<String> {
        self.rows("SELECT id FROM sessions WHERE removed_at IS NULL", |row| Ok(uuid(row.get(0)?)))
    }

    pub fn unfinished_cells(&self) -> Vec<(String, i64)> {
        let query = "SELECT session, cell FROM events AS begun WHERE name = 'cell_queued' AND NOT EXISTS
            (SELECT 1 FROM events WHERE session = begun.session AND cell = begun.cell AND name = 'cell_finished')";
        self.rows(query, |row| Ok((uuid(row.get(0)?), row.get(1)?)))
    }

    pub fn unfinished_asks(&self) -> Vec<(String, i64)> {
        let asks = |name: &str| -> BTreeSet<(String, i64)> {
            let query =
                format!("SELECT session, json FROM events WHERE name = '{name}' AND json IS NOT NULL");
            let found = self.rows(&query, |row| Ok((uuid(row.get(0)?), row.get::<_, String>(1)?)));
            let ask = |json: &str| serde_json::from_str::<Value>(json).expect("JSON")["ask"].as_i64();
            found.iter().filter_map(|(session, json)| Some((session.clone(), ask(json)?))).collect()
        };
        asks("ask_started").difference(&asks("ask_finished")).cloned().collect()
    }

    /// Whether every end of a cell, an ask or a job says why.
    pub fn all_ends_have_reasons(&self) -> bool {
        let named = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
        let query =
            "SELECT json FROM events WHERE name IN ('cell_finished', 'ask_finished') AND json IS NOT NULL";
        let events = self.rows(query, |row| row.get::<_, String>(0)).into_iter().all(|json| {
            let event: Value = serde_json::from_str(&json).expect("JSON");
            match event["type"].as_str() {
                Some("cell_finished") => {
                    named(&event["result"]["status"]) && named(&event["result"]["reason"])
                }
                _ => named(&event["end"]["outcome"]),
            }
        });
        let query = "SELECT record FROM jobs WHERE ended_at IS NOT NULL";
        let jobs = self.rows(query, |row| row.get::<_, String>(0)).into_iter().all(|json| {
            let end = serde_json::from_str::<Value>(&json).expect("JSON")["view"]["end"].clone();
            named(&end["verdict"]) && named(&end["reason"])
        });
        events && jobs
    }

    /// Ids of all that are known.
    pub fn jobs(&self) -> BTreeSet<String> {
        self.rows("SELECT id FROM jobs", |row| Ok(uuid(row.get(0)?))).into_iter().collect()
    }

    /// Records of those that have not ended.
    pub fn open_jobs(&self) -> Vec<Value> {
        let records =
            self.rows("SELECT record FROM jobs WHERE ended_at IS NULL", |row| row.get::<_, String>(0));
        records.iter().map(|json| serde_json::from_str(json).expect("JSON")).collect()
    }

    /// What administrators did with a job: who, and what.
    pub fn acts_on(&self, job: &str) -> Vec<(u32, String)> {
        let acts = self.rows("SELECT job, admin, act FROM job_acts ORDER BY rowid", |row| {
            Ok((uuid(row.get(0)?), row.get(1)?, row.get(2)?))
        });
        acts.into_iter().filter(|(of, ..)| of == job).map(|(_, admin, act)| (admin, act)).collect()
    }
}
