"""The command: its tables fit, its JSON is exact, and nonsense is one line and exit code 2."""

import json
import os
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvspec.sizing.command import size
from kvspec.sizing.presets import PRESETS


def run(*args):
    return CliRunner().invoke(size, [str(arg) for arg in args])


def data(*args):
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_table_says_bytes_and_both_units():
    result = run("llama-3-8b")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["every", "token", "131,072", "128", "KiB", "131.1", "KB"] in rows
    assert ["32,768", "4,294,967,296", "4", "GiB"] in rows
    assert result.stderr == ""


@pytest.mark.parametrize("name", PRESETS)
def test_everything_fits_in_eighty_columns(name):
    result = run(
        name,
        "--memory=80GiB",
        "--tokens=1K,128K,1M",
        "--dtype=int4",
        f"--tensor-parallel={4 if name != 'qwen2.5-7b' else 28}",
    )
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout


def test_the_list_names_every_preset():
    result = run("--list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(PRESETS)


def test_json_is_exact():
    found = data("llama-3-70b", "--tokens=32K,1000", "--block-size=16", "--memory=24GiB")
    assert (found["format"], found["version"]) == ("kvspec.size", 1)
    assert found["token_bytes_a_rank"] == 327_680
    assert [row["rank_bytes"] for row in found["sequences"]] == [10_737_418_240, 327_680_000]
    assert found["memory_bytes_a_rank"] == 24 << 30
    assert [(fit["sequence_bytes"], fit["sequences"]) for fit in found["fits"]] == [
        (10_737_418_240, 2),
        (63 * 16 * 327_680, (24 << 30) // (63 * 16 * 327_680)),
    ]
    (waste,) = found["block_sizes"]
    assert waste["tail_tokens_worst"] == waste["tail_tokens_twice_mean"] == 15
    assert waste["block_bytes"] == 16 * 327_680
    assert found["model"]["checked"]


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8", "int8", "int4"])
@pytest.mark.parametrize("name", PRESETS)
def test_no_number_in_the_json_is_a_float(name, dtype):
    assert {type(number) for number in numbers(data(name, f"--dtype={dtype}"))} == {int}


def test_scales_are_an_option():
    without = data("llama-3-8b", "--dtype=int8", "--scales=layer")
    default = data("llama-3-8b", "--dtype=int8")
    grouped = data("llama-3-8b", "--dtype=int4", "--scales=group:32", "--scale-bytes=2")
    assert without["token_bytes_a_rank"] == 65_536
    assert default["token_bytes_a_rank"] == 65_536 + 32 * 2 * 8 * 4
    assert default["element"]["scales"] == {"per": "head", "bytes_each": 4, "group": None}
    assert grouped["token_bytes_a_rank"] == 32_768 + 32 * 2 * 8 * 4 * 2


def test_ranks_share_heads_and_copy_latents():
    llama = data("llama-3-70b", "--tensor-parallel=8", "--tokens=1")
    assert llama["sequences"][0]["rank_bytes"] == 40_960
    assert llama["sequences"][0]["all_ranks_bytes"] == 327_680
    deepseek = data("deepseek-v3", "--tensor-parallel=8", "--tokens=1")
    assert deepseek["sequences"][0]["rank_bytes"] == 70_272
    assert deepseek["sequences"][0]["all_ranks_bytes"] == 8 * 70_272


def test_a_config_on_disk_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "hidden_size": 32,
            }
        )
    )
    assert data(path)["token_bytes_a_rank"] == data(tmp_path)["token_bytes_a_rank"] == 128
    assert "assumed" not in run(path).stdout
    assert data(path)["model"]["assumed"] == []


def test_what_was_assumed_is_shown(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "mistral", "num_hidden_layers": 2, "num_attention_heads": 4,'
        '"num_key_value_heads": 2, "hidden_size": 32}'
    )
    assert "assumed: sliding_window is not in the file: 4096" in run(path).stdout


def test_a_file_whose_name_is_no_text_is_read(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")
    Path(path).write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}'
    )
    assert run(path).exit_code == 0
    Path(path).write_text("{}")
    assert run(path).stderr.endswith("?.json: model_type is missing\n")


def test_numbers_are_never_cut_off():
    result = run("gemma-3-27b", "--tokens=999999999999999999M", "--memory=1TB")
    assert result.exit_code == 0
    assert "…" not in result.stdout


def test_many_block_sizes_stand_below_each_other():
    sizes = [str(n) for n in range(1, 21)]
    result = run("llama-3-8b", "--memory=80GB", f"--block-size={','.join(sizes)}")
    heads = [line.split()[1:] for line in result.stdout.splitlines() if line.startswith("tokens")]
    assert [head for head in heads if head[0] != "bytes"] == [sizes[:7], sizes[7:14], sizes[14:]]


NONSENSE = {
    "no model": ([], "name a model"),
    "unknown": (["gpt-5"], "'gpt-5' is neither a model that is known nor a file"),
    "close": (["lama-3-8b"], "did you mean llama-3-8b or llama-3-70b?"),
    "close repository": (["Qwen/Qwen3-9B"], "did you mean Qwen/Qwen3-"),
    "no such file": (["/nowhere/config.json"], "neither a model that is known nor a file"),
    "no such name": (["x" * 5000], "neither a model"),
    "no such character": (["a\0b"], "neither a model"),
    "many lines": (["a\nb"], "neither a model"),
    "zero tokens": (["llama-3-8b", "--tokens=0"], "--tokens '0' is not a whole number"),
    "negative": (["llama-3-8b", "--tokens=-5"], "--tokens '-5' is no number of tokens"),
    "half a token": (["llama-3-8b", "--tokens=1.5"], "--tokens '1.5' is not a whole number"),
    "no token": (["llama-3-8b", "--tokens="], "--tokens '' is no number of tokens"),
    "one of many": (["llama-3-8b", "--tokens=1K,x"], "--tokens 'x' is no number of tokens"),
    "digits": (["llama-3-8b", f"--tokens={'9' * 5000}"], "is no number of tokens"),
    "other digits": (["llama-3-8b", "--tokens=٣"], "is no number of tokens"),
    "dtype": (["llama-3-8b", "--dtype=fp7"], "--dtype 'fp7' is none of bf16, fp16, fp32"),
    "scales of bf16": (["llama-3-8b", "--scales=head"], "bf16 has no scales"),
    "scale bytes": (["llama-3-8b", "--scale-bytes=2"], "bf16 has no scales"),
    "scales": (["llama-3-8b", "--dtype=int8", "--scales=row"], "--scales 'row' is none of"),
    "group": (["llama-3-8b", "--dtype=int8", "--scales=group:0"], "--scales 'group:0'"),
    "nothing": (
        ["llama-3-8b", "--dtype=fp8", "--scale-bytes=4"],
        "--scale-bytes counts nothing with one scale a layer",
    ),
    "no bytes": (
        ["llama-3-8b", "--dtype=int8", "--scale-bytes=0"],
        "--scale-bytes '0' is no whole number from 1",
    ),
    "no unit": (["llama-3-8b", "--memory=24"], "--memory '24' is no size with its unit"),
    "half a unit": (["llama-3-8b", "--memory=24G"], "GiB is 1024 MiB, GB is 1000 MB"),
    "no memory": (["llama-3-8b", "--memory=0GiB"], "--memory '0GiB' is not a whole number"),
    "minus": (["llama-3-8b", "--memory=-1GiB"], "--memory '-1GiB' is no size"),
    "half a byte": (["llama-3-8b", "--memory=0.5B"], "not a whole number of bytes"),
    "no rank": (["llama-3-8b", "--tensor-parallel=0"], "--tensor-parallel '0' is no whole"),
    "rank": (["llama-3-8b", "--tensor-parallel=x"], "--tensor-parallel 'x' is no whole"),
    "three ranks": (["llama-3-8b", "--tensor-parallel=3"], "which 3 ranks cannot share equally"),
    "block": (["llama-3-8b", "--block-size=0"], "--block-size '0' is not a whole number"),
    "option": (["llama-3-8b", "--colour"], "No such option"),
    "argument": (["llama-3-8b", "llama-3-70b"], "unexpected extra argument"),
    "value": (["llama-3-8b", "--tokens"], "requires an argument"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_refused_in_one_line(case):
    args, why = NONSENSE[case]
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.fullmatch(r"kvspec: .+\n", result.stderr)
    assert len(result.stderr) < 250
    assert why in result.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "config.json:1: it is not JSON"),
        ("[]", "config.json: it is no object of fields"),
        ('{"model_type": "llama"}', "config.json: num_hidden_layers is missing"),
        ('{"model_type": "llama", "num_hidden_layers": -2}', "num_hidden_layers is -2"),
        ('{"model_type": "mamba2", "mamba_d_state": 128}', "mamba_d_state is 128"),
    ],
)
def test_a_bad_config_is_refused_by_file_and_field(tmp_path, content, why):
    path = tmp_path / "config.json"
    path.write_text(content)
    result = run(path, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(r"kvspec: .+\n", result.stderr)
    assert why in result.stderr


def test_it_can_be_a_command_of_a_group():
    """The way in which the command line takes it."""
    group = click.Group("kvspec", commands=[size])
    runner = CliRunner()
    assert runner.invoke(group, ["size", "qwen3-8b"]).exit_code == 0
    refused = runner.invoke(group, ["size", "qwen3-8b", "--tokens=0"])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("kvspec: --tokens")
    assert "Usage: kvspec size" in runner.invoke(group, ["size", "--help"]).stdout
