// What waits for people, where the page itself is not seen: a number in the tab's title and on its icon.

const SIZE = 64;
const MOST = 99;

const icon = document.querySelector("link[rel=icon]");
const plain = icon?.href;
let shown = 0;

export function showBadge(count) {
  if (count === shown) return;
  shown = count;
  const number = count > MOST ? `${MOST}+` : String(count);
  // The mark of a session that asks stays first: session.js keeps it.
  document.title = document.title.replace(/^((?:\(!\) )?)(?:\(\d+\+?\) )?/, (_, mark) => mark + (count ? `(${number}) ` : ""));
  if (icon) drawIcon(count, number);
  navigator.setAppBadge?.(count).catch(() => {}); // of an installed page
}

async function drawIcon(count, number) {
  if (!count) return void (icon.href = plain);
  const image = new Image(SIZE, SIZE);
  image.src = plain;
  await image.decode().catch(() => {});
  if (count !== shown) return;
  const canvas = Object.assign(document.createElement("canvas"), { width: SIZE, height: SIZE });
  const draw = canvas.getContext("2d");
  draw.drawImage(image, 0, 0, SIZE, SIZE);
  draw.fillStyle = "#c2261e";
  draw.beginPath();
  draw.arc(SIZE - 22, 22, 22, 0, 2 * Math.PI);
  draw.fill();
  draw.fillStyle = "#ffffff";
  draw.font = `bold ${number.length > 2 ? 20 : number.length > 1 ? 26 : 34}px sans-serif`;
  draw.textAlign = "center";
  draw.textBaseline = "middle";
  draw.fillText(number, SIZE - 22, 23);
  icon.href = canvas.toDataURL("image/png");
}
