// On a narrow window the navigation scrolls: begin where the current page is.

document.querySelector(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
