//! Keeps the generated files of `config/` true to the types. `make schemas` writes them anew.

use serde_json::Value;
use std::path::Path;

use crate::control::openapi;
use crate::protocol::event::Event;
use crate::protocol::frames::{HostFrame, KernelFrame};
use crate::protocol::result::ExecutionResult;
use crate::schema::schema_of;

fn generated() -> Vec<(&'static str, Value)> {
    vec![
        ("openapi.json", openapi::document()),
        ("schemas/host-frame.json", schema_of::<HostFrame>()),
        ("schemas/kernel-frame.json", schema_of::<KernelFrame>()),
        ("schemas/execution-result.json", schema_of::<ExecutionResult>()),
        ("schemas/event.json", schema_of::<Event>()),
    ]
}

#[test]
fn schemas_in_config_are_those_of_the_types() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    for (name, value) in generated() {
        let path = config.join(name);
        let text = format!("{}\n", serde_json::to_string_pretty(&value).unwrap());
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
        } else {
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(found == text, "{name} is out of date: run `make schemas`");
        }
    }
}
