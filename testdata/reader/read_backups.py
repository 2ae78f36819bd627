#!/usr/bin/env python3
"""Reads the database at a revision from backups in a folder.

    read_backups.py [--identities FILE] FOLDER REVISION

It was written from docs/backup-format.md alone. It needs Python's standard library, zstd and, for encrypted backups, age. It checks
everything except signatures and prints JSON: the keys as a client would read them, and the small buckets. If it cannot read exactly
this revision, it prints the reason and exits with status 1.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import subprocess
import sys

FORMAT = 1
MAX_LINE = 1 << 20


class Unusable(Exception):
    """An object is missing, damaged or inconsistent with another one."""


# Objects


class Folder:
    """A store in a directory. Files whose names start with a dot are incomplete uploads."""

    def __init__(self, directory):
        self.directory = directory

    def read(self, name):
        try:
            with open(os.path.join(self.directory, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise Unusable(f"{name} is missing") from None

    def list(self, prefix):
        names = []
        for directory, _, files in os.walk(os.path.join(self.directory, prefix)):
            below = os.path.relpath(directory, self.directory)
            names += [os.path.join(below, file) for file in files if not file.startswith(".")]
        return sorted(names)


# Statements


def statement(line, kind, name):
    """Return the statement in a line after verifying its checksum."""
    parts = re.fullmatch(rb'(\{"statement":.*),"sha256":"([0-9a-f]{64})"\}\n', line, re.DOTALL)
    if len(line) > MAX_LINE or not parts:
        raise Unusable(f"{name} is not a statement")
    if hashlib.sha256(parts[1]).hexdigest().encode() != parts[2]:
        raise Unusable(f"the checksum of {name} is wrong")
    stated = json.loads(line)["statement"]
    if stated["format"] > FORMAT:
        raise Unusable(f"{name} has format {stated['format']}, but this reader supports only formats up to {FORMAT}")
    if stated["kind"] != kind:
        raise Unusable(f"{name} has the kind {stated['kind']} instead of {kind}")
    return stated


def position_name(position):
    return f"{position[0]:019d}.{position[1]:09d}"


def position_in(name):
    found = re.fullmatch(r"(\d{19})\.(\d{9})", name)
    return found and (int(found[1]), int(found[2]))


# Sealed content


class Sealing:
    def __init__(self, identities):
        self.identities = identities

    def open(self, content, encrypted, name):
        if encrypted:
            if not self.identities:
                raise Unusable(f"{name} is encrypted, but --identities is not set")
            content = run(["age", "-d", "-i", self.identities], content, name)
        return run(["zstd", "-d", "-c", "-q"], content, name)


def run(command, content, name):
    done = subprocess.run(command, input=content, capture_output=True, check=False)
    if done.returncode != 0:
        raise Unusable(f"{command[0]} cannot read {name}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def check_body(content, stated, name):
    if len(content) != stated["bytes"] or hashlib.sha256(content).hexdigest() != stated["sha256"]:
        raise Unusable(f"the size or checksum of {name} differs from its statement")


# The chain


def uvarint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def counted(value):
    return uvarint(len(value)) + value


class Chain:
    def __init__(self, digest):
        self.digest = bytes.fromhex(digest)
        self.revision = 0
        self.rows = hashlib.sha256()

    def add(self, key, value):
        revision = int.from_bytes(key[:8], "big")
        if revision != self.revision:
            self.close()
            self.revision = revision
        self.rows.update(counted(key) + counted(value))

    def close(self):
        """Add the current revision to the chain and return the chain's digest."""
        if self.revision:
            self.digest = hashlib.sha256(self.digest + self.revision.to_bytes(8, "big") + self.rows.digest()).digest()
        self.revision, self.rows = 0, hashlib.sha256()
        return self.digest.hex()


# Records


class Records:
    """Parses the records of a segment's body."""

    def __init__(self, content, name):
        self.content, self.at, self.name = content, 0, name

    def bytes(self, length):
        if length > len(self.content) - self.at:
            raise Unusable(f"{self.name} is truncated")
        self.at += length
        return self.content[self.at - length : self.at]

    def number(self):
        number = shift = 0
        while True:
            byte = self.bytes(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def counted(self):
        return self.bytes(self.number())

    def bucket(self):
        name, count, length = self.counted().decode(), self.number(), self.number()
        end = self.at + length
        entries = [(self.counted(), self.counted()) for _ in range(count)]
        if self.at != end:
            raise Unusable(f"{self.name}: the entries of bucket {name} do not have the stated length")
        return name, entries

    def all(self):
        """Return the rows and the buckets. Skip markers and hashes."""
        rows, buckets, read = [], {}, 0
        while True:
            kind = self.bytes(1)
            if kind == b"R":
                rows.append((self.counted(), self.counted()))
            elif kind == b"M":
                self.number(), self.number()
            elif kind == b"H":
                self.number(), self.number(), self.number()
            elif kind == b"B":
                name, entries = self.bucket()
                buckets[name] = entries
            elif kind == b"Z":
                if self.number() != read or self.at != len(self.content):
                    raise Unusable(f"{self.name} has a wrong count of records, or data after them")
                return rows, buckets
            else:
                raise Unusable(f"{self.name} has a record of unknown type {kind!r}")
            read += 1


# Full snapshots: bbolt databases


class Bolt:
    """Reads a bbolt database that was written on a little-endian machine."""

    BRANCH, LEAF, BUCKET = 1, 2, 1

    def __init__(self, content):
        self.content = content
        size = self.u32(24)
        metas = [page * size + 16 for page in (0, 1) if self.u32(page * size + 16) == 0xED0CDAED]
        newest = max(metas, key=lambda at: self.u64(at + 48))
        self.size, self.root = size, self.u64(newest + 16)

    def u16(self, at):
        return int.from_bytes(self.content[at : at + 2], "little")

    def u32(self, at):
        return int.from_bytes(self.content[at : at + 4], "little")

    def u64(self, at):
        return int.from_bytes(self.content[at : at + 8], "little")

    def buckets(self):
        """Return all buckets by name, with their entries in order."""
        found = {}
        for flags, name, value in self.entries(self.root * self.size):
            if flags & self.BUCKET:
                root = int.from_bytes(value[:8], "little")
                inside = Bolt.inline(value[16:]) if root == 0 else self.entries(root * self.size)
                found[name.decode()] = [(key, content) for _, key, content in inside]
        return found

    def entries(self, page):
        flags, count = self.u16(page + 8), self.u16(page + 10)
        for i in range(count):
            at = page + 16 + 16 * i
            if flags & self.BRANCH:
                yield from self.entries(self.u64(at + 8) * self.size)
            else:
                key, length, value = at + self.u32(at + 4), self.u32(at + 8), self.u32(at + 12)
                yield self.u32(at), self.content[key : key + length], self.content[key + length : key + length + value]

    @classmethod
    def inline(cls, page):
        small = cls.__new__(cls)
        small.content, small.size = page, 0
        return small.entries(0)


# Reading


class Reader:
    def __init__(self, folder, sealing):
        self.folder, self.sealing = folder, sealing

    def read(self, revision):
        """Return the rows and small buckets at a revision, from the newest full snapshot that allows it."""
        why = []
        for generation in reversed(self.generations()):
            for manifest in self.fulls(generation, revision):
                try:
                    return self.from_full(manifest, revision)
                except Unusable as unusable:
                    why.append(str(unusable))
        raise Unusable("; ".join(why) or f"no full snapshot leads to revision {revision}")

    def generations(self):
        found = []
        for name in self.folder.list("gen"):
            if name.endswith("/generation.json"):
                found.append(statement(self.folder.read(name), "generation", name))
        return found

    def fulls(self, generation, revision):
        """Return the manifests of a generation's full snapshots up to a revision, newest first."""
        prefix = f"gen/{generation['number']:06d}/full"
        manifests = []
        for name in reversed(self.folder.list(prefix)):
            if not name.endswith("/manifest.json") or int(name[len(prefix) + 1 :][:19]) > revision:
                continue
            try:
                manifest = statement(self.folder.read(name), "full", name)
            except Unusable as unusable:
                print(unusable, file=sys.stderr)
                continue
            if (manifest["cluster"], manifest["generation"]) == (generation["cluster"], generation["number"]):
                manifests.append({**manifest, "data_name": name.replace("manifest.json", "data")})
        return manifests

    def from_full(self, full, revision):
        new, changed = self.follow(full, revision)  # first, because it may fail and the full snapshot is large
        name = full["data_name"]
        data = self.folder.read(name)
        check_body(data, full["data"], name)
        snapshot = self.sealing.open(data, full.get("encrypted", False), name)
        database, trailer = snapshot[:-32], snapshot[-32:]
        check_body(database, full["database"], name)
        if hashlib.sha256(database).digest() != trailer:
            raise Unusable(f"{name} does not end with the SHA-256 of its database")
        buckets = Bolt(database).buckets()
        rows = buckets.pop("key")
        return rows + new, {**buckets, **changed}

    def follow(self, full, revision):
        """Return the rows and buckets of the segments after a full snapshot, up to exactly this revision.

        Segments without rows that directly follow the revision are included: they contain later changes to the buckets.
        """
        position = (full["next"]["revision"], full["next"]["part"])
        digest, end, rows, buckets = full["chain"], full["revision"], [], {}
        while end <= revision:
            try:
                segment, body, name = self.segment(full, position)
                if segment["before"] != digest:
                    raise Unusable(f"{name} does not continue the chain")
                if end == revision and segment["rows"] > 0:
                    break
                new, small = self.records(segment, body, name)
            except Unusable:
                if end == revision:
                    break
                raise
            chain = Chain(digest)
            for key, value in new:
                chain.add(key, value)
            digest = chain.close()
            if digest != segment["after"]:
                raise Unusable(f"the rows of {name} do not match the digest of the chain")
            rows += [row for row in new if int.from_bytes(row[0][:8], "big") <= revision]
            if segment["end"] <= revision:
                buckets.update(small)
            if segment["rows"] > 0:
                end, position = segment["end"], (segment["end"] + 1, 0)
            else:
                position = (position[0], position[1] + 1)
        return rows, buckets

    def segment(self, full, position):
        """Return the manifest and body of the segment at a position, and the name of its object."""
        generation = f"gen/{full['generation']:06d}"
        names = [name for level in ("hour", "minute") for name in self.folder.list(f"{generation}/{level}") if covers(name, position)]
        why = []
        for name in [*names, f"{generation}/segment/{position_name(position)}"]:
            try:
                for segment, body in self.segments(name):
                    at = (segment["position"]["revision"], segment["position"]["part"])
                    if (segment["cluster"], segment["generation"]) != (full["cluster"], full["generation"]):
                        raise Unusable(f"{name} belongs to another cluster or generation")
                    if at == position:
                        return segment, body, name
                why.append(f"{name} has no segment at {position_name(position)}")
            except Unusable as unusable:
                why.append(str(unusable))
        raise Unusable(f"no segment continues the chain at position {position_name(position)}: {', '.join(why)}")

    def segments(self, name):
        """Yield the manifest and body of each segment in an object."""
        content = self.folder.read(name)
        while content:
            line, newline, rest = content.partition(b"\n")
            manifest = statement(line + newline, "segment", name)
            length = manifest["body"]["bytes"]
            yield manifest, rest[:length]
            content = rest[length:]

    def records(self, segment, body, name):
        check_body(body, segment["body"], name)
        content = self.sealing.open(body, segment.get("encrypted", False), name)
        rows, buckets = Records(content, name).all()
        if len(content) != segment["raw_bytes"] or len(rows) != segment["rows"] or list(buckets) != segment.get("buckets", []):
            raise Unusable(f"{name} does not match its statement")
        return rows, buckets


def covers(name, position):
    first, _, following = os.path.basename(name).partition("_")
    first, following = position_in(first), position_in(following)
    return first and following and first <= position < following


# Keys as clients read them


def key_value(message):
    """Decode an mvccpb.KeyValue from the Protocol Buffers wire format."""
    fields, records = {}, Records(message, "a row")
    while records.at < len(message):
        tag = records.number()
        fields[tag >> 3] = records.counted() if tag & 7 == 2 else records.number()
    return {
        "key": fields.get(1, b""), "create_revision": fields.get(2, 0), "mod_revision": fields.get(3, 0),
        "version": fields.get(4, 0), "value": fields.get(5, b""), "lease": fields.get(6, 0),
    }


def keys(rows):
    seen = {}
    for row, value in sorted(rows):
        change = key_value(value)
        if len(row) == 18:  # the row key ends with "t", so this revision deleted the key
            seen.pop(change["key"], None)
        else:
            seen[change["key"]] = change
    return [seen[key] for key in sorted(seen)]


def text(content):
    return base64.b64encode(content).decode()


def main():
    parser = argparse.ArgumentParser(description="reads the database at a revision from backups in a folder")
    parser.add_argument("--identities", help="a file of age identities")
    parser.add_argument("folder")
    parser.add_argument("revision", type=int)
    given = parser.parse_args()
    try:
        rows, buckets = Reader(Folder(given.folder), Sealing(given.identities)).read(given.revision)
    except Unusable as unusable:
        print(f"revision {given.revision} cannot be read: {unusable}", file=sys.stderr)
        return 1
    json.dump({
        "revision": given.revision,
        "keys": [{**key, "key": text(key["key"]), "value": text(key["value"])} for key in keys(rows)],
        "buckets": {name: [[text(key), text(value)] for key, value in entries] for name, entries in sorted(buckets.items())},
    }, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
