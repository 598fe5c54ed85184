// The QR code of an address, drawn by uqr: dark squares on white, whatever the theme.

const LIBRARY = "/admin/static/vendor/uqr/index.mjs";
const SVG = "http://www.w3.org/2000/svg";

class QrCode extends HTMLElement {
  async connectedCallback() {
    const { encode } = await import(LIBRARY);
    const { data, size } = encode(this.dataset.text, { ecc: "M", border: 3 });
    const squares = data.flatMap((row, y) => row.flatMap((isDark, x) => (isDark ? `M${x} ${y}h1v1h-1z` : [])));
    const picture = document.createElementNS(SVG, "svg");
    picture.setAttribute("viewBox", `0 0 ${size} ${size}`);
    picture.append(document.createElementNS(SVG, "path"));
    picture.firstChild.setAttribute("d", squares.join(""));
    this.replaceChildren(picture);
  }
}

customElements.define("omlx-qr", QrCode);
