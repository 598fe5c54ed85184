"""Small PDFs, written by hand."""

from __future__ import annotations

import base64
import zlib
from io import BytesIO

from pypdf import PdfReader, PdfWriter


def pdf(*pages: str) -> bytes:
    """Return a PDF with a line of text on each page."""
    return _document([f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode() for text in pages])


def bomb(size: int) -> bytes:
    """Return a PDF whose page has `size` bytes of blanks, compressed."""
    return _document([zlib.compress(b" " * size, 9)], b" /Filter /FlateDecode")


def encrypted(data: bytes) -> bytes:
    """Return the PDF so that it asks for a password."""
    writer = PdfWriter(clone_from=PdfReader(BytesIO(data)))
    writer.encrypt("secret", algorithm="RC4-128")
    output = BytesIO()
    writer.write(output)
    return output.getvalue()


def uri(data: bytes, media_type: str = "application/pdf") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _document(contents: list[bytes], filter: bytes = b"") -> bytes:
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, content in enumerate(contents):
        page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Resources "
        page += f"<< /Font << /F1 3 0 R >> >> /Contents {5 + 2 * i} 0 R >>"
        head = b"<< /Length %d%b >>\nstream\n" % (len(content), filter)
        objects += [page.encode(), head + content + b"\nendstream"]
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    table += b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return data + table + trailer % (len(objects) + 1, len(data))
